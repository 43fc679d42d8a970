// `syncline bench aggregate`: time of a whole step of a shard, for each parameter: sum of
// all workers' contributions, optimizer and encoding of the published view, fused strip
// by strip.
//
// Contributions are real frames, and blocks step as in a shard (server/shard/stepper.h),
// without sockets and messages. `over_floor` is the time in units of the floor: every
// contribution read once, weights and state read and written once, the published bytes
// written once, at the bandwidth that a copy of memory reaches in the same process
// between the rounds. For AdamW, 8 workers and BF16 both ways the floor is 42 bytes for
// each parameter.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchAggregate(CLI::App& bench, Command* selected);

}  // namespace syncline
