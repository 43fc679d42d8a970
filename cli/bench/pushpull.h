// `syncline bench pushpull`: time per step of pushing a model's gradients and receiving
// its new weights, with real coordinator, server and worker processes on this host.
//
// Every worker pushes `bytes` of FP32 gradients and waits for all weights; the servers
// run the optimizer. Rank 0 times the steps; every worker checks its final weights
// against a float64 computation, unless the codec sends a part of the values only.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchPushPull(CLI::App& bench, Command* selected);

}  // namespace syncline
