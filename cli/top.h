// `syncline top`: shows the cluster in a terminal, redrawn every second.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddTop(CLI::App& app, Command* selected);

}  // namespace syncline
