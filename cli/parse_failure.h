// What was wrong with a command line, in our own words: what, where, and what to do.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/status.h"

namespace syncline {

// For an `error` that `app` raised about `arguments` (without the program's name).
// Failure::kUsage; unknown names come with the nearest valid one.
absl::Status ParseFailure(CLI::App& app, const CLI::ParseError& error,
                          const std::vector<std::string>& arguments);

}  // namespace syncline
