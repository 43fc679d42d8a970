// `syncline bench control`: how many members a coordinator carries on this machine.
//
// A coordinator runs in a process of its own and the raw members (cli/control_load.h) in
// another. The scenarios are the moments that matter: all workers start at once, a tenth
// of them dies at once, nothing happens, a job with 100,000 tensors comes.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchControl(CLI::App& bench, Command* selected);

}  // namespace syncline
