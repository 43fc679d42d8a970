// `syncline bench optimizer`: measures the time that an optimizer needs per parameter,
// and the machine's copy bandwidth.
//
// Weights, state and gradient are far larger than the caches. They stream through
// Optimizer::Apply strip by strip, as in a shard. With --out bf16, each strip is also
// encoded for publishing. `of_copy` is the fraction of the bandwidth of copies of memory,
// which run in the same process between the rounds.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchOptimizer(CLI::App& bench, Command* selected);

}  // namespace syncline
