// What a seed draws of a job: something of everything that a step is made of.
#pragma once

#include <cstdint>
#include <random>

#include "server/coordinator/job_spec.h"
#include "tests/sim/worker_process.h"

namespace syncline::sim {

inline constexpr uint32_t kWorkers = 3;
inline constexpr uint64_t kSteps = 8;

using Random = std::mt19937_64;

double Between(Random& random, double low, double high);
bool OneIn(Random& random, int n);

JobSpec RandomJob(Random& random);
Skipping RandomSkipping(Random& random, const JobSpec& job);
Rating RandomRating(Random& random, const JobSpec& job);

}  // namespace syncline::sim
