// `syncline status`: what the coordinator knows about its servers, jobs and members.
#pragma once

#include <cstddef>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"

namespace syncline {

// The tables for people, from the JSON of comm/rpc/status_json.h. Lines have so many
// columns at most, unless a word has more (output_width.h); 0: no limit.
absl::StatusOr<std::string> StatusAsTable(const std::string& json,
                                          const std::string& coordinator,
                                          size_t columns = 0);

// "999 B", "1.5 MB", "12.3 GB".
std::string HumanBytes(double bytes);

void AddStatus(CLI::App& app, Command* selected);

}  // namespace syncline
