#include "comm/base/patient_clock.h"

#include <random>

#include "comm/base/env.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);

class PatientClockTest : public testing::Test {
 protected:
  absl::Duration After(absl::Duration by) {
    steady_.Advance(by);
    return patient_.Advance(steady_.Now());
  }

  FakeClock steady_;
  PatientClock patient_{
      {.planned = kTick, .longest_gap = 2 * kTick, .settle = 2 * kTick}};
};

TEST_F(PatientClockTest, GoesWithTheOtherClockWhileItIsAsked) {
  for (int i = 1; i <= 100; ++i) EXPECT_EQ(After(kTick), i * kTick);
  EXPECT_EQ(After(2 * kTick), 102 * kTick) << "a late call is no pause";
  EXPECT_EQ(patient_.pauses(), 0);
}

TEST_F(PatientClockTest, DoesNotCountAPause) {
  const absl::Duration before = After(kTick);
  EXPECT_EQ(After(absl::Seconds(400)), before + kTick);
  EXPECT_EQ(patient_.pauses(), 1);
  // The clock stands still at first, so that messages that arrived meanwhile are handled.
  EXPECT_EQ(After(kTick), before + kTick);
  EXPECT_EQ(After(kTick), before + kTick);
  EXPECT_EQ(After(kTick), before + 2 * kTick);
}

TEST_F(PatientClockTest, CountsOnlyWhatComesAfterItHasSettled) {
  const absl::Duration before = After(kTick);
  After(absl::Seconds(4));
  After(kTick);
  EXPECT_EQ(After(3 * kTick / 2), before + kTick + kTick / 2);
}

TEST_F(PatientClockTest, NeverGoesBackNorFasterThanTheOther) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    absl::Duration last = patient_.Advance(steady_.Now());
    for (int i = 0; i < 200; ++i) {
      const absl::Duration by =
          absl::Milliseconds(random() % (random() % 20 == 0 ? 5000 : 120));
      const absl::Duration now = After(by);
      EXPECT_GE(now, last) << seed;
      EXPECT_LE(now - last, by) << seed;
      last = now;
    }
  }
}

}  // namespace
}  // namespace syncline
