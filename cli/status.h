// `syncline status`: prints what the coordinator knows about servers, jobs and members.
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
  // Width of lines, unless a word is longer (output_width.h). 0: no limit.
  size_t columns = 0;
  // kBrief: shows how data travels only if servers differ in it, or if it is insecure.
  StatusDetail detail = StatusDetail::kBrief;
  // Jobs that runs on this host are starting. They may have no worker yet.
  std::vector<std::string> starting = {};
};

// Returns tables for people, from the JSON of comm/rpc/status_json.h.
absl::StatusOr<std::string> StatusAsTable(const std::string& json,
                                          const std::string& coordinator,
                                          const StatusLayout& layout = {});

void AddStatus(CLI::App& app, Command* selected);

}  // namespace syncline
