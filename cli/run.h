// `syncline run`: starts the workers of a job on this host, and what they need
// (cli/launcher.h).
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddRun(CLI::App& app, Command* selected);

}  // namespace syncline
