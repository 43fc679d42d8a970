// Draws a job from a seed, with random settings of everything that a step consists of.
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

// The number of workers, servers and steps of a run.
struct RunSize {
  uint32_t workers = 3;
  std::vector<uint32_t> engines = {1, 1};  // number of engines of each server
  uint64_t steps = 8;
};
// Returns a random size. Most runs are short, so that many fit into the time. Some have
// more than 64 steps, to include what happens every 64 steps.
RunSize RandomSize(Random& random);

// Describes the job in words, to find out why a seed failed.
std::string Describe(const JobSpec& job, const RunSize& size);

JobSpec RandomJob(Random& random, const RunSize& size);
// Whether the reference knows which options each step was made with.
bool TakesUpdates(const JobSpec& job);
bool NeedsDecisions(const JobSpec& job);
Skipping RandomSkipping(Random& random, const JobSpec& job);
Rating RandomRating(Random& random, const JobSpec& job);

}  // namespace syncline::sim
