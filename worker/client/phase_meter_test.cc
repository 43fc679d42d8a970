#include "worker/client/phase_meter.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

class PhaseMeterTest : public testing::Test {
 protected:
  void Pass(int milliseconds) { clock_.Advance(absl::Milliseconds(milliseconds)); }
  double Milliseconds(WorkerPhase phase) const { return 1e3 * meter_.sums()[phase]; }

  FakeClock clock_;
  PhaseMeter meter_{clock_};
};

TEST_F(PhaseMeterTest, WhatTheExchangeDoesCountsWhileTheProgramWaits) {
  meter_.Begin();
  Pass(5);
  meter_.Exchange(WorkerPhase::kPush);
  Pass(7);  // the program still computes
  {
    const PhaseMeter::Wait wait(meter_);
    Pass(3);
    meter_.Exchange(WorkerPhase::kOthers);
    Pass(11);
    meter_.Exchange(WorkerPhase::kDecode);
    Pass(2);
  }
  Pass(1);
  meter_.Step();
  EXPECT_NEAR(Milliseconds(WorkerPhase::kCompute), 13, 1e-9);
  EXPECT_NEAR(Milliseconds(WorkerPhase::kPush), 3, 1e-9);
  EXPECT_NEAR(Milliseconds(WorkerPhase::kOthers), 11, 1e-9);
  EXPECT_NEAR(Milliseconds(WorkerPhase::kDecode), 2, 1e-9);
  EXPECT_EQ(meter_.sums().steps, 1u);
}

TEST_F(PhaseMeterTest, PhasesAreAllOfTheTimeSinceItBegan) {
  Pass(1000);
  meter_.Begin();
  for (int i = 0; i < 20; ++i) {
    Pass(i);
    const PhaseMeter::Wait outer(meter_);
    meter_.Exchange(i % 2 == 0 ? WorkerPhase::kEncode : WorkerPhase::kPublish);
    Pass(2 * i);
    const PhaseMeter::Wait inner(meter_);
    Pass(1);
  }
  const auto sums = meter_.sums();
  const double total = std::accumulate(sums.seconds.begin(), sums.seconds.end(), 0.0);
  EXPECT_NEAR(1e3 * total, 3 * 190 + 20, 1e-9);
  EXPECT_NEAR(1e3 * sums[WorkerPhase::kCompute], 190, 1e-9);
}

TEST_F(PhaseMeterTest, DurationsGoFromOneStepToTheNext) {
  meter_.Step();
  Pass(1000);
  meter_.Begin();
  Pass(500);
  meter_.Step();
  EXPECT_EQ(meter_.durations().total(), 0u) << "the first has nothing before it";
  for (const int milliseconds : {10, 10, 100}) {
    Pass(milliseconds);
    meter_.Step();
  }
  EXPECT_EQ(meter_.durations().total(), 3u);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(*meter_.durations().Quantile(0.5)), 10, 0.4);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(*meter_.durations().Quantile(1)), 100, 4);
}

TEST_F(PhaseMeterTest, OfWholeStepsNothingIsToldOfTheOneUnderWay) {
  const auto compute = [&] { return 1e3 * meter_.whole_steps()[WorkerPhase::kCompute]; };
  meter_.Begin();
  Pass(18'000);
  EXPECT_EQ(compute(), 0);
  meter_.Step();
  Pass(12'000);
  EXPECT_NEAR(compute(), 18'000, 1e-6);
  EXPECT_NEAR(Milliseconds(WorkerPhase::kCompute), 30'000, 1e-6);
  {
    const PhaseMeter::Wait wait(meter_);
    Pass(500);
  }
  Pass(6'000);
  meter_.Step();
  EXPECT_EQ(meter_.whole_steps().steps, 2u);
  EXPECT_NEAR(compute(), 36'000, 1e-6);
  EXPECT_NEAR(1e3 * meter_.whole_steps()[WorkerPhase::kOthers], 500, 1e-6);
  meter_.Begin();
  EXPECT_EQ(meter_.whole_steps().steps, 0u);
  EXPECT_EQ(compute(), 0);
}

TEST_F(PhaseMeterTest, NothingCountsBeforeItBegins) {
  {
    const PhaseMeter::Wait wait(meter_);
    Pass(9);
  }
  meter_.Step();
  meter_.Begin();
  EXPECT_EQ(meter_.sums().steps, 0u);
  EXPECT_EQ(Milliseconds(WorkerPhase::kOthers), 0);
}

TEST_F(PhaseMeterTest, WorkForTheSessionIsNoComputing) {
  meter_.Begin();
  Pass(4);
  {
    const PhaseMeter::Work decodes(meter_, WorkerPhase::kDecode);
    Pass(6);
  }
  Pass(1);
  EXPECT_NEAR(Milliseconds(WorkerPhase::kDecode), 6, 1e-9);
  EXPECT_NEAR(Milliseconds(WorkerPhase::kCompute), 5, 1e-9);
}

class TracedPhases : public PhaseMeterTest {
 protected:
  TracedPhases() {
    meter_.TraceTo(recorder_.AddTrack("program"), 3, 10);
    meter_.Begin();
    recorder_.Open(3);
  }
  // Returns the recorded spans, except those that took no time.
  std::vector<TraceSpan> Spans() {
    auto taken = recorder_.Take(100);
    if (!taken) return {};
    std::erase_if(taken->spans,
                  [](const TraceSpan& one) { return one.begin_ns == one.end_ns; });
    return taken->spans;
  }
  static TraceSpan SpanOf(TraceKind kind, int64_t begin_ms, int64_t end_ms,
                          uint64_t step) {
    return {.begin_ns = begin_ms * 1000000,
            .end_ns = end_ms * 1000000,
            .step = step,
            .kind = kind};
  }

  TraceRecorder recorder_{clock_};
};

TEST_F(TracedPhases, AStepLastsUntilItsWeightsAreHere) {
  Pass(1);
  meter_.Step(11);
  {
    const PhaseMeter::Wait wait(meter_);
    Pass(2);
  }
  Pass(1);  // the program runs between two waits
  {
    const PhaseMeter::Wait wait(meter_);
    Pass(1);
    meter_.Landed();
    Pass(1);  // the program has not woken up yet
  }
  Pass(3);
  meter_.Step(12);
  Pass(1);
  meter_.Landed();  // while the program computes
  Pass(1);
  { const PhaseMeter::Wait wait(meter_); }
  EXPECT_EQ(Spans(), (std::vector{SpanOf(TraceKind::kCompute, 0, 1, 10),
                                  SpanOf(TraceKind::kOthers, 1, 3, 10),
                                  SpanOf(TraceKind::kCompute, 3, 4, 10),
                                  SpanOf(TraceKind::kOthers, 4, 6, 10),
                                  SpanOf(TraceKind::kCompute, 6, 10, 11),
                                  SpanOf(TraceKind::kCompute, 10, 11, 12)}));
}

TEST_F(TracedPhases, AProgramThatNeverWaitsGoesOnWithEachPush) {
  Pass(1);
  meter_.Step(11);
  Pass(2);
  meter_.Step(12);
  Pass(3);
  meter_.Step(13);
  EXPECT_EQ(Spans(), (std::vector{SpanOf(TraceKind::kCompute, 0, 3, 10),
                                  SpanOf(TraceKind::kCompute, 3, 6, 11)}));
}

}  // namespace
}  // namespace syncline
