// One seeded run of a job of two or three workers of which one is stopped (SIGSTOP) after
// some steps, and never goes on. In simulated time, F being the failure timeout, the others
// must do what the table of docs/modes.md says of a worker that hangs:
//
// - bsp, whole=1: they go on within 0.6 F of the stop;
// - ssp: they make all steps that they may be ahead first, and wait for nobody; then they go
//   on within 0.6 F of the stop;
// - asp, a quorum of the others: they never wait.
//
// To 0.6 F a step's own time is added, and the coordinator's period.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace syncline::sim {

// When the coordinator drops whoever is silent. The latter is a planted fault.
enum class DropsSilent { kInTime, kAfterFiveTimeouts };

// Internal says who waited for how long. `mode` as of Simulate.
absl::Status SimulateStopped(uint64_t seed, std::string_view mode,
                             DropsSilent drops = DropsSilent::kInTime);

}  // namespace syncline::sim
