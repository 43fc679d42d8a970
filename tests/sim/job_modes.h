// Makes jobs fit to a sync mode. It draws the mode's options, and replaces settings that
// the mode does not support.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/job_spec.h"
#include "tests/sim/random_job.h"
#include "tests/sim/simulation.h"

namespace syncline::sim {

// Whether `mode` is "bsp", "ssp", "asp", "quorum" (a random one) or text such as
// "bsp:quorum=2,grace_ms=20".
bool IsMode(std::string_view mode);
// Fit the size of a run and a job to the mode. With "bsp" the job stays as it is, and
// nothing is drawn. REQUIRES: IsMode(mode).
RunSize FitToMode(std::string_view mode, Restarts restarts, RunSize size);
JobSpec FitToMode(std::string_view mode, std::mt19937_64& random, JobSpec job);

bool ServersDie(Restarts restarts);
// Whether the job must survive all crashes of the run.
bool OutlivesAll(Restarts restarts);
// Returns the job with the durability that it needs to survive crashes of servers.
JobSpec MadeDurable(JobSpec job, Restarts restarts);

// Returns an update to other options, for the middle of a run of `steps` steps.
UpdateJob RandomUpdate(Random& random, const JobSpec& job, uint64_t steps);
// Returns an update to another staleness, for a job in mode ssp. The coordinator may
// refuse it; the job then stays as it is.
UpdateJob RandomStaleness(Random& random, const JobSpec& job);

}  // namespace syncline::sim
