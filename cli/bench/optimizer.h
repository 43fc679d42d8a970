// `syncline bench optimizer`: time that an optimizer needs for each parameter, beside the
// machine's copy bandwidth.
//
// Weights, state and gradient are far larger than the caches and stream through
// Optimizer::Apply strip by strip, as in a shard; with --out bf16 each strip is also
// encoded for the way back. `of_copy` is the share of the bandwidth that a copy of memory
// reaches in the same process between the rounds.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchOptimizer(CLI::App& bench, Command* selected);

}  // namespace syncline
