#include "tests/sim/random_network.h"

#include <cmath>

namespace syncline::sim {

InprocOptions RandomNetwork(Random& random) {
  InprocOptions options;
  options.seed = random();
  options.faults.min_delay = absl::Microseconds(10);
  options.faults.max_delay = absl::Microseconds(Between(random, 20, 5000));
  options.failure_delay = absl::Milliseconds(Between(random, 0, 50));
  // The same size as in comm/transport/ucx.
  if (OneIn(random, 2)) options.smallest_loan = 8192;
  return options;
}

double RandomRate(Random& random) { return 125e3 * std::pow(10, Between(random, 0, 3)); }

Cables RandomCables(Random& random, const RunSize& size) {
  Cables cables(size.workers, std::vector<Cable>(size.engines.size()));
  const bool is_slow = OneIn(random, 2);
  const bool all_are = OneIn(random, 2);
  for (uint32_t rank = 0; rank < size.workers && is_slow; ++rank) {
    if (!all_are && rank > 0) break;
    for (Cable& cable : cables[rank]) cable = {RandomRate(random), RandomRate(random)};
  }
  return cables;
}

}  // namespace syncline::sim
