// What a seed draws of a network: delays, how late deaths are heard of, and the cables
// between workers and servers.
#pragma once

#include <vector>

#include "comm/transport/inproc/inproc.h"
#include "tests/sim/random_job.h"

namespace syncline::sim {

InprocOptions RandomNetwork(Random& random);

// Bytes per second, from 1 Mbit/s to 1 Gbit/s.
double RandomRate(Random& random);

// Of one worker and one server; 0: no limit.
struct Cable {
  double up = 0;
  double down = 0;
};
// By worker and server: fast enough not to matter, each worker's own, or one that is slow.
using Cables = std::vector<std::vector<Cable>>;
Cables RandomCables(Random& random, const RunSize& size);

}  // namespace syncline::sim
