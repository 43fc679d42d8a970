// `syncline run`: starts the workers of a job on this host, and what they need
// (cli/launcher.h).
#pragma once

#include <functional>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"
#include "cli/launch_plan.h"

namespace syncline {

// The flags of `syncline run` that say who runs where, for commands that run a program.
void AddRunFlags(CLI::App& command, RunOptions& options);

// Runs the program; `at_end` is called as Launcher says.
absl::StatusOr<int> RunProgram(RunOptions options,
                               const std::function<void(const std::string&)>& at_end);

void AddRun(CLI::App& app, Command* selected);

}  // namespace syncline
