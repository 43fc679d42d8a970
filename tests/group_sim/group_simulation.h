// One seed. Processes form a group and call operations. They are killed, frozen or cut
// off, leave, or do not call an operation. The processes that are there then, including
// revived ones, form the next group.
//
// What must hold:
// - no process hangs: every operation under way ends on every survivor, with an error
//   that names the rank that is to blame and no other, within F after the last cause
//   (1.25 F and the time of the network; at the deadline if a live rank does not call);
// - operations that end without an error have the right values;
// - nothing is read or written after the end of an operation;
// - a process that stands still for 0.6 F is not considered dead;
// - the last group, in which nothing happens, completes all its operations.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tests/group_sim/sim_wire.h"

namespace syncline::group_sim {

// Counts over all seeds.
struct Tally {
  uint64_t groups = 0;
  uint64_t incidents = 0;
  uint64_t right = 0;    // operations that ended well, counted on each rank
  uint64_t failed = 0;   // operations that ended with an error, counted on each rank
  uint64_t revived = 0;  // members that had died or been frozen in an earlier group
};

// Runs the seed. Returns an error that says what did not hold.
absl::Status Simulate(uint64_t seed, Fault fault, Tally& tally);

}  // namespace syncline::group_sim
