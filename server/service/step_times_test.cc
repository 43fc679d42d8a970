#include "server/service/step_times.h"

#include <vector>

#include "comm/base/env.h"
#include "comm/base/trace_recorder.h"
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
  times.Decided(9, kMs(30));  // of a step that has not begun
  EXPECT_EQ(times.sums().steps, 1u);
  EXPECT_DOUBLE_EQ(times.sums()[ServerPhase::kDecide], 0);
}

TEST(StepTimes, StepsThatNobodyEndsAreForgotten) {
  StepTimes times(2);
  for (uint64_t step = 0; step < 1000; ++step) times.Applied(step, kMs(1));
  EXPECT_EQ(times.Applied(0, kMs(5)), std::nullopt) << "its first block was forgotten";
  EXPECT_EQ(times.Applied(999, kMs(5)), kMs(4));
}

TEST(StepTimes, WhatAStepWaitedForGoesToAnOpenTrace) {
  FakeClock clock;  // of the trace; the engine's clock began 100 s later
  clock.Advance(absl::Seconds(100));
  TraceRecorder recorder(clock);
  StepTimes times(1);
  times.TraceTo(recorder.AddTrack("engine"), 3);
  const auto at = [&](int ms) {
    clock.Advance(absl::Seconds(100) + absl::Milliseconds(ms) - clock.Now());
    return absl::Milliseconds(ms);
  };
  times.Contributed(6, at(0));
  times.Applied(6, at(0));  // before the trace was opened
  recorder.Open(3);
  times.Contributed(7, at(1));
  times.Contributed(7, at(4));
  times.Decided(7, at(9));
  times.Applied(7, at(11));
  times.Sent(at(15));
  times.Contributed(8, at(20));
  const auto taken = recorder.Take(100);
  ASSERT_TRUE(taken);
  const auto span = [](TraceKind kind, int64_t begin_ms, int64_t end_ms) {
    return TraceSpan{.begin_ns = 100000000000 + begin_ms * 1000000,
                     .end_ns = 100000000000 + end_ms * 1000000,
                     .step = 7,
                     .kind = kind};
  };
  // Nothing of step 6 was sent, so its span is empty.
  TraceSpan of_six = span(TraceKind::kSend, 0, 0);
  of_six.step = 6;
  EXPECT_EQ(taken->spans, (std::vector{of_six, span(TraceKind::kHold, 1, 4),
                                       span(TraceKind::kDecide, 4, 9),
                                       span(TraceKind::kSend, 11, 15)}));
}

}  // namespace
}  // namespace syncline
