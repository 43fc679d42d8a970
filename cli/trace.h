// `syncline trace JOB`: a window of steps on all members, as a file for ui.perfetto.dev.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddTrace(CLI::App& app, Command* selected);

}  // namespace syncline
