// `syncline status`: what the coordinator knows about its servers, jobs and members.
#pragma once

#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"

namespace syncline {

// The tables for people, from the JSON of comm/rpc/status_json.h.
absl::StatusOr<std::string> StatusAsTable(const std::string& json,
                                          const std::string& coordinator);

// "999 B", "1.5 MB", "12.3 GB".
std::string HumanBytes(double bytes);

void AddStatus(CLI::App& app, Command* selected);

}  // namespace syncline
