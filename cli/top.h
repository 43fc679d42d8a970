// `syncline top`: the cluster in a terminal, a new picture each second.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddTop(CLI::App& app, Command* selected);

}  // namespace syncline
