// What a seed draws of a job: something of everything that a step is made of.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "server/coordinator/job_spec.h"
#include "tests/sim/worker_process.h"

namespace syncline::sim {

using Random = std::mt19937_64;

double Between(Random& random, double low, double high);
bool OneIn(Random& random, int n);

// How much of everything there is.
struct RunSize {
  uint32_t workers = 3;
  std::vector<uint32_t> engines = {1, 1};  // of each server
  uint64_t steps = 8;
};
// Most are small, so that many fit into the time; some pass what happens every 64 steps.
RunSize RandomSize(Random& random);

// For people who look for what failed.
std::string Describe(const JobSpec& job, const RunSize& size);

JobSpec RandomJob(Random& random, const RunSize& size);
// Whether the reference knows which options each step was made with.
bool TakesUpdates(const JobSpec& job);
bool NeedsDecisions(const JobSpec& job);
Skipping RandomSkipping(Random& random, const JobSpec& job);
Rating RandomRating(Random& random, const JobSpec& job);

}  // namespace syncline::sim
