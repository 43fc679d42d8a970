// `syncline bench control`: measures how many members a coordinator can serve here.
//
// The coordinator runs in its own process, and the raw members (cli/bench/control_load.h)
// in another. The scenarios are critical moments: all workers start at once, a tenth of
// them dies at once, nothing happens, or a job with 100,000 tensors starts.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchControl(CLI::App& bench, Command* selected);

}  // namespace syncline
