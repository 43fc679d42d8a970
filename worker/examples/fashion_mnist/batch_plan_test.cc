#include "worker/examples/fashion_mnist/batch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace syncline::fashion_mnist {
namespace {

std::vector<uint32_t> Copy(std::span<const uint32_t> batch) {
  return {batch.begin(), batch.end()};
}

// How often each sample is seen in all epochs, over all ranks.
std::vector<int> CountSamples(BatchPlanOptions options) {
  std::vector<int> seen(options.samples);
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    BatchPlan plan(options);
    for (int64_t step = 0; step < plan.total_steps(); ++step) {
      const auto batch = plan.Batch(step);
      EXPECT_GE(batch.size(), 1u);
      EXPECT_LE(batch.size(),
                static_cast<size_t>(options.batch_size * BatchPlan::kGrowth));
      for (const uint32_t sample : batch) ++seen.at(sample);
    }
  }
  return seen;
}

TEST(BatchPlan, ShowsEachSampleOnceAnEpoch) {
  for (const int64_t samples : {252, 253, 1000, 60'000}) {
    for (const int world_size : {1, 2, 3, 4, 7}) {
      for (const int64_t batch_size : {2, 5, 9}) {
        for (const int64_t epochs : {1, 2, 5}) {
          if (samples == 60'000 && epochs == 5) continue;
          SCOPED_TRACE(::testing::Message()
                       << samples << " samples, " << world_size << " x " << batch_size
                       << ", " << epochs << " epochs");
          const auto seen = CountSamples({.samples = samples,
                                          .epochs = epochs,
                                          .batch_size = batch_size,
                                          .world_size = world_size});
          EXPECT_EQ(std::ranges::count(seen, epochs), samples);
        }
      }
    }
  }
}

TEST(BatchPlan, TakesEachSampleOnceBeforeItTakesOneTwice) {
  constexpr int64_t kSamples = 100;
  BatchPlan plan({.samples = kSamples, .epochs = 5, .batch_size = 8});
  int64_t taken = 0;
  std::vector<int> seen(kSamples);
  for (int64_t step = 0; step < plan.total_steps(); ++step) {
    for (const uint32_t sample : plan.Batch(step)) {
      EXPECT_EQ(seen.at(sample), taken / kSamples) << "step " << step;
      ++seen[sample];
      ++taken;
    }
  }
  EXPECT_EQ(taken, 5 * kSamples);
}

TEST(BatchPlan, GrowsTheBatchesOfTheLastTwoOfFiveEpochs) {
  BatchPlan plan({.samples = 6400, .epochs = 5, .batch_size = 16, .world_size = 4});
  EXPECT_EQ(plan.total_steps(), 3 * 100 + 2 * 25);
  EXPECT_EQ(plan.Batch(299).size(), 16u);
  EXPECT_EQ(plan.Batch(300).size(), 64u);
}

TEST(BatchPlan, DependsOnNothingButSeedStepAndRank) {
  const BatchPlanOptions options{
      .samples = 1000, .epochs = 6, .batch_size = 10, .rank = 2, .world_size = 4};
  BatchPlan from_the_start(options);
  BatchPlan late_joiner(options);
  for (int64_t step = 0; step < 97; ++step) from_the_start.Batch(step);
  EXPECT_EQ(Copy(from_the_start.Batch(97)), Copy(late_joiner.Batch(97)));
  EXPECT_EQ(Copy(from_the_start.Batch(3)), Copy(late_joiner.Batch(3)));
}

TEST(BatchPlan, ShufflesEveryEpochAndSeedAnew) {
  BatchPlanOptions options{.samples = 1000, .epochs = 2, .batch_size = 250, .seed = 1};
  BatchPlan plan(options);
  options.seed = 2;
  BatchPlan other_seed(options);
  const auto first = Copy(plan.Batch(0));
  EXPECT_NE(first, Copy(plan.Batch(4)));  // the first of the second epoch
  EXPECT_NE(first, Copy(other_seed.Batch(0)));
  EXPECT_FALSE(std::ranges::is_sorted(first));
}

TEST(BatchPlan, MovesSamplesFarAndEvenly) {
  // The mean distance from home of a uniform permutation is n / 3.
  constexpr int64_t kSamples = 60'000;
  BatchPlan plan({.samples = kSamples, .batch_size = 15'000});
  double distance = 0;
  int64_t place = 0;
  for (int64_t step = 0; step < plan.total_steps(); ++step) {
    for (const uint32_t sample : plan.Batch(step)) {
      distance += std::abs(static_cast<double>(sample) - static_cast<double>(place++));
    }
  }
  EXPECT_NEAR(distance / kSamples, kSamples / 3.0, kSamples * 0.01);
}

}  // namespace
}  // namespace syncline::fashion_mnist
