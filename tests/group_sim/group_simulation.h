// One seed: processes form a group, call operations, are killed, frozen, cut off, leave, or
// do not come, and those that are there, revived ones too, form the next one.
//
// What must hold:
// - nobody hangs: whatever is under way ends on every survivor, with an error that names
//   whoever is to blame and nobody else, F after the last cause (1.25 F and what the network
//   takes; at the deadline where a rank lives and does not come);
// - what ends without an error has the right values;
// - nothing is read or written after the end of an operation: memory stays as it was;
// - whoever stands still for 0.6 F is not taken for dead;
// - the last group, in which nothing happens, does all that it was asked for.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tests/group_sim/sim_wire.h"

namespace syncline::group_sim {

// Of all seeds together.
struct Tally {
  uint64_t groups = 0;
  uint64_t incidents = 0;  // that happened
  uint64_t right = 0;      // operations that ended well, by rank
  uint64_t failed = 0;     // that ended with an error, by rank
  uint64_t revived = 0;  // members of a group that had died or been frozen in one before
};

// Not OK: what did not hold.
absl::Status Simulate(uint64_t seed, Fault fault, Tally& tally);

}  // namespace syncline::group_sim
