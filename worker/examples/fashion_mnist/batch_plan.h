// Which samples a worker trains on at which step: a pure function of (seed, step, rank).
//
// Every epoch is a fresh seeded permutation of the data set, cut into equal steps and
// every step into one slice per rank, so that each sample is seen exactly once per epoch,
// whoever reads it. Being a function of the step, a worker that joins late, or again,
// knows its samples without asking anybody.
//
//   BatchPlan plan({.samples = 60'000, .batch_size = 64, .rank = 1, .world_size = 4});
//   for (int64_t step = 0; step < 5 * plan.steps_per_epoch(); ++step)
//   Train(plan.Batch(step));
//
// Not thread-safe: Batch caches the permutation of its epoch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace syncline::fashion_mnist {

struct BatchPlanOptions {
  int64_t samples = 0;
  int64_t batch_size = 64;  // the most samples of one rank at one step
  int rank = 0;
  int world_size = 1;
  uint64_t seed = 1;
};

class BatchPlan {
 public:
  // REQUIRES: 0 <= rank < world_size, batch_size >= 2, samples >= batch_size *
  // world_size. Then no batch is ever empty.
  explicit BatchPlan(const BatchPlanOptions& options);

  int64_t steps_per_epoch() const { return steps_per_epoch_; }

  // The sample numbers of this rank at `step` (counted over all epochs), at most
  // batch_size of them. Valid until the next call.
  std::span<const uint32_t> Batch(int64_t step);

 private:
  void Shuffle(int64_t epoch);

  const BatchPlanOptions options_;
  const int64_t steps_per_epoch_;
  int64_t epoch_ = -1;                 // of permutation_
  std::vector<uint32_t> permutation_;  // all samples, in this epoch's order
};

}  // namespace syncline::fashion_mnist
