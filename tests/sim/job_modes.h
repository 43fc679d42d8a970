// Jobs of a mode: settings that do not go with it are replaced, its options drawn.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/job_spec.h"
#include "tests/sim/random_job.h"
#include "tests/sim/simulation.h"

namespace syncline::sim {

// "bsp", "ssp", "asp", "quorum" (one that is drawn) or "bsp:quorum=2,grace_ms=20". Of bsp the
// job stays as it is, and nothing is drawn.
bool IsMode(std::string_view mode);
// REQUIRES: IsMode(mode), for both.
RunSize FitToMode(std::string_view mode, Restarts restarts, RunSize size);
JobSpec FitToMode(std::string_view mode, std::mt19937_64& random, JobSpec job);

bool ServersDie(Restarts restarts);
// None of what dies is a reason to fail.
bool OutlivesAll(Restarts restarts);
// With what servers need to come back, where they die.
JobSpec MadeDurable(JobSpec job, Restarts restarts);

// Other options in the middle of a run of so many steps.
UpdateJob RandomUpdate(Random& random, const JobSpec& job, uint64_t steps);
// Another staleness, for a job of mode ssp. It may be refused: the job stays as it is.
UpdateJob RandomStaleness(Random& random, const JobSpec& job);

}  // namespace syncline::sim
