#include "server/service/step_times.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr auto kMs = [](int ms) { return absl::Milliseconds(ms); };

TEST(StepTimes, SplitsAStepIntoWhatItWaitedFor) {
  StepTimes times(2);
  times.Contributed(7, kMs(100));
  times.Contributed(7, kMs(110));
  times.Contributed(7, kMs(130));
  times.Decided(7, kMs(145));
  times.Worked(kMs(4));
  EXPECT_EQ(times.Applied(7, kMs(147)), std::nullopt);
  EXPECT_EQ(times.Applied(7, kMs(149)), kMs(49));
  times.Sent(kMs(150));
  times.Sent(kMs(153));
  const ServerPhases& sums = times.sums();
  EXPECT_EQ(sums.steps, 1u);
  EXPECT_DOUBLE_EQ(sums[ServerPhase::kHold], 0.030);
  EXPECT_DOUBLE_EQ(sums[ServerPhase::kDecide], 0.015);
  EXPECT_DOUBLE_EQ(sums[ServerPhase::kStep], 0.004);
  EXPECT_DOUBLE_EQ(sums[ServerPhase::kPublish], 0.004);
}

TEST(StepTimes, ViewsThatGoOutDuringTheNextStepAreNotOfTheLastOne) {
  StepTimes times(1);
  times.Contributed(0, kMs(0));
  times.Applied(0, kMs(1));
  times.Contributed(1, kMs(50));
  times.Sent(kMs(60));
  EXPECT_DOUBLE_EQ(times.sums()[ServerPhase::kPublish], 0);
}

TEST(StepTimes, AStepWithoutContributionsHasTakenNoTime) {
  StepTimes times(1);
  EXPECT_EQ(times.Applied(3, kMs(20)), kMs(0));
  times.Decided(9, kMs(30));  // of a step that nobody has begun
  EXPECT_EQ(times.sums().steps, 1u);
  EXPECT_DOUBLE_EQ(times.sums()[ServerPhase::kDecide], 0);
}

TEST(StepTimes, StepsThatNobodyEndsAreForgotten) {
  StepTimes times(2);
  for (uint64_t step = 0; step < 1000; ++step) times.Applied(step, kMs(1));
  EXPECT_EQ(times.Applied(0, kMs(5)), std::nullopt) << "its first block was forgotten";
  EXPECT_EQ(times.Applied(999, kMs(5)), kMs(4));
}

}  // namespace
}  // namespace syncline
