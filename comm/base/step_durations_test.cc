#include "comm/base/step_durations.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(StepDurations, QuantileIsThatOfTheSortedStepsToThreePercent) {
  uint64_t random = 88172645463325252u;  // xorshift64
  for (const int64_t longest_us : {100, 5'000, 200'000, 90'000'000}) {
    StepDurations durations;
    std::vector<int64_t> sorted;
    for (int i = 0; i < 1000; ++i) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      const auto us = static_cast<int64_t>(random % static_cast<uint64_t>(longest_us));
      durations.Add(absl::Microseconds(us));
      sorted.push_back(us);
    }
    std::ranges::sort(sorted);
    for (const size_t percent : {50, 95, 99}) {
      const auto expected = static_cast<double>(sorted[percent * 10 - 1]);
      const double found = absl::ToDoubleMicroseconds(
          *durations.Quantile(static_cast<double>(percent) / 100));
      EXPECT_NEAR(found, expected, 0.032 * expected + 1.01)
          << longest_us << " " << percent;
    }
  }
}

TEST(StepDurations, OfNoStepsHaveNoQuantile) {
  EXPECT_FALSE(StepDurations().Quantile(0.5).has_value());
  EXPECT_EQ(StepDurations().total(), 0u);
}

TEST(StepDurations, TellLaterStepsFromEarlierOnes) {
  StepDurations durations;
  for (int i = 0; i < 10; ++i) durations.Add(absl::Milliseconds(10));
  const StepDurations earlier = durations;
  for (int i = 0; i < 5; ++i) durations.Add(absl::Milliseconds(100));
  const StepDurations later = durations.Since(earlier);
  EXPECT_EQ(later.total(), 5u);
  EXPECT_EQ(later.sum(), absl::Milliseconds(500));
  EXPECT_EQ(earlier.Since(durations).sum(), absl::ZeroDuration());
  EXPECT_GT(*later.Quantile(0.1), absl::Milliseconds(90));
  EXPECT_EQ(earlier.Since(durations).total(), 0u);
}

TEST(StepDurations, OfSeveralWorkersAddUp) {
  StepDurations one, other;
  one.Add(absl::Milliseconds(1));
  other.Add(absl::Milliseconds(1));
  other.Add(absl::Seconds(1));
  one.Add(other);
  EXPECT_EQ(one.total(), 3u);
  EXPECT_EQ(one.counts().size(), 2u);
}

TEST(StepDurations, TakeWhatIsOutOfRange) {
  StepDurations durations;
  durations.Add(-absl::Seconds(1));
  durations.Add(absl::InfiniteDuration());
  EXPECT_EQ(durations.total(), 2u);
  for (const auto& [part, count] : durations.counts()) {
    EXPECT_LT(part, StepDurations::kAllParts);
  }
  const StepDurations heard({{5, 2}, {StepDurations::kAllParts, 9}, {7, 0}},
                            absl::Microseconds(10));
  EXPECT_EQ(heard.total(), 2u);
}

}  // namespace
}  // namespace syncline
