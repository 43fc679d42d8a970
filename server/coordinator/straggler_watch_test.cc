// For which member the others wait, from what workers report of their steps.
#include "server/coordinator/straggler_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace syncline {
namespace {

class StragglerWatchTest : public ::testing::Test {
 protected:
  StragglerWatchTest() {
    job_.phase = JobPhase::kRunning;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      job_.members.push_back({.rank = rank, .incarnation = 7 + rank, .name = "host:1"});
    }
  }

  // Makes steps of this many seconds. Each member computes for a part of them, and waits
  // for the rest.
  void Step(const std::vector<double>& computes, double length = 1) {
    for (size_t rank = 0; rank < computes.size(); ++rank) {
      MemberView& member = job_.members[rank];
      ++member.phases.steps;
      member.phases[slow_phase_] += computes[rank] * length;
      member.phases[WorkerPhase::kOthers] += (1 - computes[rank]) * length;
      member.durations.Add(absl::Seconds(length));
    }
    now_ += absl::Seconds(length);
    watch_.Look(job_, now_);
  }
  void Train(int seconds, const std::vector<double>& computes) {
    for (int i = 0; i < seconds; ++i) Step(computes);
  }
  // What is not judged: a look, and a window.
  void Warm(const std::vector<double>& computes) { Train(11, computes); }
  absl::Duration Lasted() const {
    return watch_.suspect() ? watch_.suspect()->lasted : absl::ZeroDuration();
  }

  StragglerWatch watch_{2};
  JobView job_;
  absl::Duration now_ = absl::Seconds(100);
  WorkerPhase slow_phase_ = WorkerPhase::kCompute;
};

TEST_F(StragglerWatchTest, FindsTheOneThatTakesSeveralTimesAsLong) {
  Warm({0.2, 0.9, 0.3});
  EXPECT_FALSE(watch_.suspect()) << "the first window is of programs that begin";
  Train(10, {0.2, 0.9, 0.3});
  ASSERT_TRUE(watch_.suspect());
  EXPECT_EQ(watch_.suspect()->rank, 1u);
  EXPECT_EQ(watch_.suspect()->incarnation, 8u);
  EXPECT_NEAR(watch_.suspect()->ratio(), 3, 1e-9);
  EXPECT_NEAR(watch_.suspect()->gain(), 1 / 0.4, 1e-9);
  EXPECT_FALSE(watch_.suspect()->is_by_link);
  EXPECT_EQ(Lasted(), absl::Seconds(10));
  EXPECT_NEAR(watch_.waited(), (0.8 + 0.1 + 0.7) / 3, 1e-9);
  Train(10, {0.2, 0.9, 0.3});
  EXPECT_FALSE(watch_.suspect()->IsOneFor(absl::Seconds(10))) << "two windows";
  Train(10, {0.2, 0.9, 0.3});
  EXPECT_EQ(Lasted(), absl::Seconds(30));
  EXPECT_TRUE(watch_.suspect()->IsOneFor(absl::Seconds(10)));
  EXPECT_FALSE(watch_.suspect()->IsOneFor(absl::Seconds(31)));
}

TEST_F(StragglerWatchTest, ItsLossCountsAgainstTheWholeStep) {
  // The servers hold up all.
  for (int i = 0; i < 1100; ++i) Step({0.009, 0.03, 0.009}, 0.02);
  ASSERT_TRUE(watch_.suspect());
  EXPECT_GT(watch_.suspect()->ratio(), 2);
  EXPECT_LT(watch_.suspect()->gain(), 1.03);
}

TEST_F(StragglerWatchTest, IsNobodyBehindServersForWhichAllWaitAlike) {
  for (int i = 0; i < 31; ++i) {  // in mode ssp nobody waits for the slowest
    for (MemberView& member : job_.members) {
      ++member.phases.steps;
      member.phases[WorkerPhase::kCompute] += member.rank == 1 ? 0.3 : 0.1;
      member.phases[WorkerPhase::kPublish] += 0.6;
      member.durations.Add(absl::Milliseconds(member.rank == 1 ? 900 : 700));
    }
    now_ += absl::Seconds(1);
    watch_.Look(job_, now_);
  }
  EXPECT_FALSE(watch_.suspect());
  EXPECT_GT(watch_.waited(), 0.5);
}

TEST_F(StragglerWatchTest, IsNobodyByOneLongStep) {
  Warm({0.2, 0.2, 0.3});
  for (int i = 0; i < 10; ++i) {  // rank 1 validates once in a window
    Step({0.05, 0.95, 0.05}, 6);
    for (int k = 0; k < 10; ++k) Step({0.3, 0.3, 0.3}, 0.5);
    EXPECT_FALSE(watch_.suspect()) << "window " << i;
  }
}

TEST_F(StragglerWatchTest, IsNobodyByStepsThatAreTooFew) {
  Warm({0.2, 0.2, 0.3});
  for (int i = 0; i < 20; ++i) Step({0.3, 0.95, 0.3}, 100);
  EXPECT_FALSE(watch_.suspect()) << "two steps in three minutes";
}

TEST_F(StragglerWatchTest, OfTwoIsNobodyByItsPushes) {
  job_.members.pop_back();
  slow_phase_ = WorkerPhase::kPush;
  Train(31, {0.2, 0.9});
  EXPECT_FALSE(watch_.suspect()) << "the server takes one after the other";
  slow_phase_ = WorkerPhase::kCompute;
  Train(31, {0.2, 0.9});
  EXPECT_TRUE(watch_.suspect());
}

TEST_F(StragglerWatchTest, SaysWhetherItIsByItsLink) {
  slow_phase_ = WorkerPhase::kPush;
  Train(21, {0.2, 0.9, 0.3});
  ASSERT_TRUE(watch_.suspect());
  EXPECT_TRUE(watch_.suspect()->is_by_link);
}

TEST_F(StragglerWatchTest, IsOneOnlyByTheWholeFactor) {
  Train(31, {0.2, 0.59, 0.3});
  EXPECT_FALSE(watch_.suspect());
}

TEST_F(StragglerWatchTest, AreNotTwoThatAreAlikeSlow) {
  Train(31, {0.2, 0.9, 0.8});
  EXPECT_FALSE(watch_.suspect()) << "it would be one after the other";
}

TEST_F(StragglerWatchTest, IsClearedByOneWindowThatSaysSomethingElse) {
  Train(41, {0.2, 0.9, 0.3});
  EXPECT_EQ(Lasted(), absl::Seconds(30));
  Train(10, {0.3, 0.4, 0.3});
  EXPECT_FALSE(watch_.suspect());
  Train(10, {0.2, 0.9, 0.3});
  EXPECT_EQ(Lasted(), absl::Seconds(10));
  Train(10, {0.9, 0.2, 0.3});
  EXPECT_EQ(watch_.suspect()->rank, 0u);
  EXPECT_EQ(Lasted(), absl::Seconds(10)) << "slow by turns";
}

TEST_F(StragglerWatchTest, IsNobodyForWhomNobodyWaits) {
  for (int i = 0; i < 31; ++i) {
    for (MemberView& member : job_.members) {
      ++member.phases.steps;
      member.durations.Add(absl::Milliseconds(member.rank == 1 ? 900 : 200));
      member.phases[WorkerPhase::kCompute] += member.rank == 1 ? 0.9 : 0.2;
    }
    now_ += absl::Seconds(1);
    watch_.Look(job_, now_);
  }
  EXPECT_FALSE(watch_.suspect());
}

TEST_F(StragglerWatchTest, IsForgottenWithItsProcess) {
  Train(31, {0.2, 0.9, 0.3});
  ASSERT_TRUE(watch_.suspect());
  job_.members[1].incarnation = 20;
  job_.members[1].phases = {};
  job_.members[1].durations = {};
  Train(1, {0.2, 0.9, 0.3});
  EXPECT_FALSE(watch_.suspect()) << "the new one has done nothing yet";
  EXPECT_EQ(watch_.waited(), 0);
  Train(10, {0.2, 0.9, 0.3});
  EXPECT_FALSE(watch_.suspect()) << "its first window";
  Train(10, {0.2, 0.9, 0.3});
  EXPECT_EQ(Lasted(), absl::Seconds(10));
}

TEST_F(StragglerWatchTest, IsNobodyWhoWaitsOutside) {
  job_.members[1].is_outside = true;
  Train(31, {0.2, 0.9, 0.3});
  EXPECT_FALSE(watch_.suspect()) << "0.3 is not twice 0.2";
}

TEST_F(StragglerWatchTest, WaitsForThreeSlowStepsAndCountsThemAsTwentySeconds) {
  for (int i = 0; i < 10; ++i) Step({0.2, 0.9, 0.3}, 30);
  ASSERT_TRUE(watch_.suspect());
  EXPECT_EQ(watch_.suspect()->windows, 2);
  EXPECT_EQ(Lasted(), absl::Seconds(40));
}

TEST_F(StragglerWatchTest, IsForgottenWhileTheJobStandsStill) {
  Train(31, {0.2, 0.9, 0.3});
  ASSERT_TRUE(watch_.suspect());
  for (int i = 0; i < 70; ++i) {
    now_ += absl::Seconds(1);
    watch_.Look(job_, now_);
  }
  EXPECT_FALSE(watch_.suspect());
  EXPECT_EQ(watch_.waited(), 0);
}

TEST_F(StragglerWatchTest, IsForgottenInAnotherPhase) {
  Train(31, {0.2, 0.9, 0.3});
  ASSERT_TRUE(watch_.suspect());
  job_.phase = JobPhase::kWaiting;
  Train(100, {0.2, 0.9, 0.3});
  EXPECT_FALSE(watch_.suspect());
  job_.phase = JobPhase::kRunning;
  Train(11, {0.2, 0.9, 0.3});
  EXPECT_FALSE(watch_.suspect()) << "the first window";
  Train(10, {0.2, 0.9, 0.3});
  EXPECT_EQ(Lasted(), absl::Seconds(10));
}

TEST_F(StragglerWatchTest, IsNobodyWhereSomebodySaysWhatCannotBe) {
  job_.members.clear();
  for (uint32_t rank = 0; rank < 20; ++rank) {  // more than are sorted one by one
    job_.members.push_back({.rank = rank, .incarnation = 7 + rank, .name = "host:1"});
  }
  std::vector<double> computes(20, 0.2);
  computes[1] = 0.9;
  Train(21, computes);
  ASSERT_TRUE(watch_.suspect());
  for (const uint32_t rank : {0u, 1u, 7u, 13u, 19u}) {
    for (const double odd : {std::nan(""), HUGE_VAL, -5.0, 1e9}) {
      job_.members[rank].phases[WorkerPhase::kCompute] += odd;
      Train(10, computes);
      EXPECT_FALSE(watch_.suspect()) << rank << " said " << odd;
      job_.members[rank].phases.seconds = {};
      Train(20, computes);  // less than before: one more
      Train(10, computes);
      ASSERT_TRUE(watch_.suspect());
    }
  }
}

TEST_F(StragglerWatchTest, IsNobodyWhereStepsAreNotSaid) {
  for (int i = 0; i < 31; ++i) {  // by an older release
    for (MemberView& member : job_.members) {
      ++member.phases.steps;
      member.phases[WorkerPhase::kCompute] += member.rank == 1 ? 0.9 : 0.2;
      member.phases[WorkerPhase::kOthers] += member.rank == 1 ? 0.1 : 0.8;
    }
    now_ += absl::Seconds(1);
    watch_.Look(job_, now_);
  }
  EXPECT_FALSE(watch_.suspect());
}

TEST_F(StragglerWatchTest, IsNobodyByWhatIsNoNumber) {
  for (const double odd : {std::nan(""), std::numeric_limits<double>::infinity(), -5.0}) {
    StragglerWatchTest::watch_ = StragglerWatch(2);
    Train(31, {0.2, odd, 0.3});
    EXPECT_FALSE(watch_.suspect()) << odd;
    job_.members[1].phases.seconds = {};
  }
  job_.members[2].phases.steps = 0;  // fewer than before
  now_ += absl::Seconds(20);
  watch_.Look(job_, now_);
  EXPECT_FALSE(watch_.suspect());
}

TEST_F(StragglerWatchTest, IsNobodyAlone) {
  job_.members.resize(1);
  Train(31, {0.9});
  EXPECT_FALSE(watch_.suspect());
}

}  // namespace
}  // namespace syncline
