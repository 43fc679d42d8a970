// Which samples a worker trains on at which step: a pure function of (seed, step, rank).
//
// Every epoch is a fresh seeded permutation of the data set, cut into equal steps and
// every step into one slice per rank, so that each sample is seen exactly once per epoch,
// whoever reads it. Being a function of the step, a worker that joins late, or again,
// knows its samples without asking anybody.
//
// The last two of five epochs use batches four times as large. With the constant learning
// rate of a job this does what a falling one does: it calms the weights down at the end
// (Smith et al. 2018, "Don't decay the learning rate, increase the batch size").
//
//   BatchPlan plan({.samples = 60'000, .epochs = 5, .batch_size = 64, .world_size = 4});
//   for (int64_t step = 0; step < plan.total_steps(); ++step) Train(plan.Batch(step));
//
// Not thread-safe: Batch caches the permutation of its epoch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace syncline::fashion_mnist {

struct BatchPlanOptions {
  int64_t samples = 0;
  int64_t epochs = 1;
  int64_t batch_size =
      64;  // the most samples of one rank at one step of the first epochs
  int rank = 0;
  int world_size = 1;
  uint64_t seed = 1;
};

class BatchPlan {
 public:
  static constexpr int64_t kGrowth = 4;  // of the last epochs' batches

  // REQUIRES: 0 <= rank < world_size, epochs >= 0, batch_size >= 2 and
  // samples >= kGrowth * batch_size * world_size. Then no batch is ever empty.
  explicit BatchPlan(const BatchPlanOptions& options);

  int64_t total_steps() const;

  // The sample numbers of this rank at `step`, which is below total_steps(). Valid until
  // the next call.
  std::span<const uint32_t> Batch(int64_t step);

 private:
  // Of a step: which of the equal parts of which epoch.
  struct Place {
    int64_t epoch;
    int64_t part;
    int64_t parts;
  };

  Place Find(int64_t step) const;
  void Shuffle(int64_t epoch);

  const BatchPlanOptions options_;
  const int64_t small_epochs_;
  const int64_t small_parts_;  // steps of one epoch
  const int64_t large_parts_;
  int64_t epoch_ = -1;                 // of permutation_
  std::vector<uint32_t> permutation_;  // all samples, in this epoch's order
};

}  // namespace syncline::fashion_mnist
