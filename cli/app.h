// The frame of `syncline`: parses the command line, adds the settings of the environment
// and the configuration file, runs the selected subcommand, and turns its result into an
// exit code.
#pragma once

#include <span>

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

using AddCommand = void (*)(CLI::App& app, Command* selected);

// Runs the command line `argv`, as main received it. Returns the exit code. Prints an
// error as one line on standard error.
int RunApp(std::span<const char* const> argv, std::span<const AddCommand> commands);

}  // namespace syncline
