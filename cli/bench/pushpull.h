// `syncline bench pushpull`: measures the time per step of pushing a model's gradients
// and receiving its new weights, with a real coordinator, servers and workers on this
// host.
//
// Every worker pushes `bytes` of FP32 gradients and waits for all weights; the servers
// run the optimizer. Rank 0 times the steps. Every worker checks its final weights
// against a float64 computation, unless the codec sends only a part of the values.
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBenchPushPull(CLI::App& bench, Command* selected);

}  // namespace syncline
