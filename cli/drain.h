// `syncline drain`: ends a server once others have what jobs need of it.
//
//   syncline drain ps-2
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddDrain(CLI::App& app, Command* selected);

}  // namespace syncline
