// One seeded run of a job with two or three workers, of which one is stopped (SIGSTOP)
// after some steps and never continues. F is the failure timeout. In simulated time, the
// others must do what the table of docs/modes.md says about a worker that hangs:
//
// - bsp, whole=1: they continue within 0.6 F of the stop;
// - ssp: they first make all steps that they may be ahead, without waiting; then they
//   continue within 0.6 F of the stop;
// - asp, a quorum of the others: they never wait.
//
// A step's own time and the coordinator's period are added to 0.6 F.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace syncline::sim {

// When the coordinator drops silent workers. kAfterFiveTimeouts is a planted fault.
enum class DropsSilent { kInTime, kAfterFiveTimeouts };

// Runs the seed, with a mode as in Simulate. Fails with Internal, which says which worker
// waited for how long.
absl::Status SimulateStopped(uint64_t seed, std::string_view mode,
                             DropsSilent drops = DropsSilent::kInTime);

}  // namespace syncline::sim
