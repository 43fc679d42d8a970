// `syncline status`: what the coordinator knows about its servers, jobs and members.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"

namespace syncline {

enum class StatusDetail { kBrief, kAll };

struct StatusLayout {
  // Of lines, unless a word has more (output_width.h); 0: no limit.
  size_t columns = 0;
  // Brief: by which way data travels only where servers differ in it.
  StatusDetail detail = StatusDetail::kBrief;
  std::vector<std::string> starting =
      {};  // jobs of this host, which may have no worker yet
};

// The tables for people, from the JSON of comm/rpc/status_json.h.
absl::StatusOr<std::string> StatusAsTable(const std::string& json,
                                          const std::string& coordinator,
                                          const StatusLayout& layout = {});

void AddStatus(CLI::App& app, Command* selected);

}  // namespace syncline
