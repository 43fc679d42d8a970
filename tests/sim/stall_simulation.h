// One seeded run of a job in which somebody stands still for good, without dying: a
// server that loses its data network but beats, before or after it got its first values;
// a member that claims to wait and pushes nothing; one that enters a barrier too early;
// one that is cut off from one server; one that crashes before its first push and is
// restarted at once, over and over.
//
// What must hold, in simulated time:
//
// - no job stands still for longer than 7 F: 5 F is Timeouts::no_progress, one more is
//   left for standstills that no server can explain, and one for the new epoch;
// - nobody but the one to blame is dropped;
// - all others reach the last step, or all members are told an error that is worth a
//   retry. The latter only where a server is cut off, or may be.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace syncline::sim {

// Internal names what did not hold.
absl::Status SimulateStall(uint64_t seed);

}  // namespace syncline::sim
