// `syncline drain`: ends a server once other servers hold the data that jobs need.
//
//   syncline drain ps-2
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddDrain(CLI::App& app, Command* selected);

}  // namespace syncline
