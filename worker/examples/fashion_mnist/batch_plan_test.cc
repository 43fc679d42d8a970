#include "worker/examples/fashion_mnist/batch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace syncline::fashion_mnist {
namespace {

std::vector<uint32_t> Copy(std::span<const uint32_t> batch) {
  return {batch.begin(), batch.end()};
}

// How often each sample is seen in one epoch, over all ranks.
std::vector<int> CountSamples(BatchPlanOptions options, int64_t epoch) {
  std::vector<int> seen(options.samples);
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    BatchPlan plan(options);
    for (int64_t step = 0; step < plan.steps_per_epoch(); ++step) {
      const auto batch = plan.Batch(epoch * plan.steps_per_epoch() + step);
      EXPECT_GE(batch.size(), 1u);
      EXPECT_LE(batch.size(), static_cast<size_t>(options.batch_size));
      for (const uint32_t sample : batch) ++seen.at(sample);
    }
  }
  return seen;
}

TEST(BatchPlan, ShowsEachSampleOnceAnEpoch) {
  for (const int64_t samples : {64, 65, 127, 1000, 60'000}) {
    for (const int world_size : {1, 2, 3, 4, 7}) {
      for (const int64_t batch_size : {2, 5, 9}) {
        SCOPED_TRACE(::testing::Message()
                     << samples << " samples, " << world_size << " x " << batch_size);
        const auto seen = CountSamples(
            {.samples = samples, .batch_size = batch_size, .world_size = world_size}, 2);
        EXPECT_EQ(std::ranges::count(seen, 1), samples);
      }
    }
  }
}

TEST(BatchPlan, GivesTheWholeSetToOneStepWhereItFits) {
  BatchPlan plan({.samples = 8, .batch_size = 4, .rank = 1, .world_size = 2});
  EXPECT_EQ(plan.steps_per_epoch(), 1);
  EXPECT_EQ(plan.Batch(0).size(), 4u);
}

TEST(BatchPlan, DependsOnNothingButSeedStepAndRank) {
  const BatchPlanOptions options{
      .samples = 1000, .batch_size = 10, .rank = 2, .world_size = 4};
  BatchPlan from_the_start(options);
  BatchPlan late_joiner(options);
  for (int64_t step = 0; step < 137; ++step) from_the_start.Batch(step);
  EXPECT_EQ(Copy(from_the_start.Batch(137)), Copy(late_joiner.Batch(137)));
  EXPECT_EQ(Copy(from_the_start.Batch(3)), Copy(late_joiner.Batch(3)));
}

TEST(BatchPlan, ShufflesEveryEpochAndSeedAnew) {
  BatchPlanOptions options{.samples = 1000, .batch_size = 1000, .seed = 1};
  BatchPlan plan(options);
  options.seed = 2;
  BatchPlan other_seed(options);
  const auto first = Copy(plan.Batch(0));
  EXPECT_NE(first, Copy(plan.Batch(1)));
  EXPECT_NE(first, Copy(other_seed.Batch(0)));
  EXPECT_FALSE(std::ranges::is_sorted(first));
}

TEST(BatchPlan, MovesSamplesFarAndEvenly) {
  // Of a uniform permutation the mean distance from home is n / 3, give or take n /
  // sqrt(n) / 4.
  constexpr int64_t kSamples = 60'000;
  BatchPlan plan({.samples = kSamples, .batch_size = kSamples});
  const auto order = plan.Batch(0);
  double distance = 0;
  for (int64_t i = 0; i < kSamples; ++i) distance += std::abs(order[i] - i);
  EXPECT_NEAR(distance / kSamples, kSamples / 3.0, kSamples * 0.01);
}

}  // namespace
}  // namespace syncline::fashion_mnist
