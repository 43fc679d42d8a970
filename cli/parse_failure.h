// Describes an error of the command line: what is wrong, where, and what to do.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/status.h"

namespace syncline {

// Translates an `error` that `app` raised about `arguments` (without the program's name)
// to Failure::kUsage. For unknown names suggests the nearest valid one.
absl::Status ParseFailure(CLI::App& app, const CLI::ParseError& error,
                          const std::vector<std::string>& arguments);

}  // namespace syncline
