// Draws a network from a seed: delays, the time until a death is noticed, and the cables
// between workers and servers.
#pragma once

#include <vector>

#include "comm/transport/inproc/inproc.h"
#include "tests/sim/random_job.h"

namespace syncline::sim {

InprocOptions RandomNetwork(Random& random);

// Returns bytes per second, from 1 Mbit/s to 1 Gbit/s.
double RandomRate(Random& random);

// Bytes per second between one worker and one server; 0: no limit.
struct Cable {
  double up = 0;
  double down = 0;
};
// The cables by worker and server. Either all are fast enough not to matter, or each
// worker has its own speed, or one of them is slow.
using Cables = std::vector<std::vector<Cable>>;
Cables RandomCables(Random& random, const RunSize& size);

}  // namespace syncline::sim
