#include "comm/base/env.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(SteadyClock, StartsNearZeroAndNeverGoesBack) {
  const SteadyClock clock;
  absl::Duration last = clock.Now();
  EXPECT_GE(last, absl::ZeroDuration());
  EXPECT_LT(last, absl::Seconds(10));
  for (int i = 0; i < 1000; ++i) {
    const absl::Duration now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_GT(last, absl::ZeroDuration());
}

TEST(FakeClock, MovesOnlyWhenTold) {
  FakeClock clock;
  EXPECT_EQ(clock.Now(), absl::ZeroDuration());
  clock.Advance(absl::Milliseconds(1500));
  EXPECT_EQ(clock.Now(), absl::Milliseconds(1500));
  EXPECT_EQ(clock.Now(), absl::Milliseconds(1500));
}

TEST(FakeClockDeathTest, RefusesToGoBack) {
  FakeClock clock;
  EXPECT_DEATH(clock.Advance(-absl::Seconds(1)), "CHECK failed");
}

}  // namespace
}  // namespace syncline
