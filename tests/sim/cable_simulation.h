// One seeded run of a job of mode bsp in which each process is on a host of its own, with
// one cable for everything: gradients, weights, and the messages of the control plane.
// Cables have 1 Mbit/s to 1 Gbit/s. In half of the runs another worker joins, and in half
// a worker is killed. F is the failure timeout, 10 s. What must hold:
//
// - all workers that stay end with the weights that the reference computes, bit for bit;
// - no worker ends but the killed one;
// - no heartbeat is older than F/4 at the coordinator;
// - what hosts send is at most 1.1 times the necessary bytes of blocks, and the small
//   messages;
// - steps of runs in which nobody joins or dies take little longer than the busiest cable
//   needs.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace syncline::sim {

// Planted faults, which the run must find.
enum class CableFault {
  kNone,
  kPushesTwice,  // workers send each push twice
  kBeatsLate,    // workers send a heartbeat every F/3 instead of every F/10
  kExcludes,     // the coordinator excludes a worker that did nothing wrong
  kComputesLong  // a worker computes for seconds in each step
};

// Runs the seed. Fails with Internal, which says what did not hold.
absl::Status SimulateCables(uint64_t seed, CableFault fault = CableFault::kNone);

}  // namespace syncline::sim
