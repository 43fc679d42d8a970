// One seeded run of a job in which a process stands still forever without dying:
//
// - a server loses its data network but sends heartbeats, before or after it has its
//   first values;
// - a member claims to wait, and pushes nothing;
// - a member enters a barrier too early;
// - a member is cut off from one server;
// - a member crashes before its first push, and is restarted at once, again and again.
//
// What must hold, in simulated time:
//
// - no job stands still for longer than 7 F: 5 F is Timeouts::no_progress, one more F is
//   for standstills that no server can explain, and one for the new epoch;
// - only the process that is to blame is dropped;
// - all others reach the last step, or all members get a retryable error. The latter is
//   allowed only if a server is cut off, or may be.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace syncline::sim {

// Runs the seed. Fails with Internal, which says what did not hold.
absl::Status SimulateStall(uint64_t seed);

}  // namespace syncline::sim
