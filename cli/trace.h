// `syncline trace JOB`: records some steps on all members, for ui.perfetto.dev.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddTrace(CLI::App& app, Command* selected);

}  // namespace syncline
