// `syncline bench aggregate`: measures the time of a shard's whole step per parameter. A
// step is the sum of all workers' contributions, the optimizer, and the encoding of the
// published view, fused strip by strip.
//
// Contributions are real frames, and blocks step as in a shard (server/shard/stepper.h),
// without sockets and messages. `over_floor` is the time divided by the floor: the time
// to read every contribution once, to read and write weights and state once, and to write
// the published bytes once. The floor assumes the bandwidth of copies of memory, which
// run in the same process between the rounds. For AdamW with 8 workers and BF16 in both
// directions, the floor is 42 bytes per parameter.
// each parameter.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchAggregate(CLI::App& bench, Command* selected);

}  // namespace syncline
