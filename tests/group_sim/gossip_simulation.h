// One seed of gossip (comm/collective/gossip). Ranks exchange values in pairs over the
// product's group core and messages, in simulated time. Some ranks are killed. The others
// form another group, and continue from the furthest round that any of them has reached.
//
// What must hold:
// - no rank hangs: a rank that needs a dead one ends with an error that names the dead
//   rank and no other;
// - if two partners have both done a round, they moved by exactly the negative of each
//   other;
// - in a group in which no rank dies, the sum of all ranks' values does not change at
//   all: they are whole numbers with room for as many halvings as there are rounds.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "tests/group_sim/group_simulation.h"

namespace syncline::group_sim {

// Runs the seed. Returns an error that says what did not hold. Counts groups, incidents,
// and exchanges (as operations by rank) in `tally`.
absl::Status SimulateGossip(uint64_t seed, Fault fault, Tally& tally);

}  // namespace syncline::group_sim
