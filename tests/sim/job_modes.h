// Jobs of a mode: settings that do not go with it are replaced, its options drawn.
#pragma once

#include <random>
#include <string_view>

#include "server/coordinator/job_spec.h"

namespace syncline::sim {

// REQUIRES: "bsp", "ssp" or "asp". Of bsp the job stays as it is, and nothing is drawn.
JobSpec FitToMode(std::string_view mode, std::mt19937_64& random, JobSpec job);

}  // namespace syncline::sim
