// `syncline run`: starts the workers of a job on this host, and the services that they
// need (cli/launcher.h).
#pragma once

#include <functional>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"
#include "cli/launch_plan.h"

namespace syncline {

// Adds the flags that say which processes run where, for commands that run a program.
void AddRunFlags(CLI::App& command, RunOptions& options);

// Runs the program. `at_end`: see Launcher::set_at_end.
absl::StatusOr<int> RunProgram(RunOptions options,
                               const std::function<void(const std::string&)>& at_end);

void AddRun(CLI::App& app, Command* selected);

}  // namespace syncline
