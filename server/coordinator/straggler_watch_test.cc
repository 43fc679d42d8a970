// Whom the others wait for, from what workers say of their steps.
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
    job_.phase = "running";
    for (uint32_t rank = 0; rank < 3; ++rank) {
      job_.members.push_back({.rank = rank, .incarnation = 7 + rank, .name = "host:1"});
    }
  }

  // One step a second, of which each member computes for so many, and waits for the rest.
  void Train(int seconds, const std::vector<double>& computes) {
    for (int i = 0; i < seconds; ++i) {
      for (size_t rank = 0; rank < computes.size(); ++rank) {
        WorkerPhases& phases = job_.members[rank].phases;
        ++phases.steps;
        phases[slow_phase_] += computes[rank];
        phases[WorkerPhase::kOthers] += 1 - computes[rank];
      }
      now_ += absl::Seconds(1);
      watch_.Look(job_, now_);
    }
  }
  absl::Duration Lasted() const {
    return watch_.suspect() ? watch_.suspect()->lasted : absl::ZeroDuration();
  }

  StragglerWatch watch_{2};
  JobView job_;
  absl::Duration now_ = absl::Seconds(100);
  WorkerPhase slow_phase_ = WorkerPhase::kCompute;
};

TEST_F(StragglerWatchTest, FindsTheOneThatTakesSeveralTimesAsLong) {
  Train(11, {0.2, 0.9, 0.3});
  ASSERT_TRUE(watch_.suspect());
  EXPECT_EQ(watch_.suspect()->rank, 1u);
  EXPECT_EQ(watch_.suspect()->incarnation, 8u);
  EXPECT_NEAR(watch_.suspect()->ratio(), 3, 1e-9);
  EXPECT_FALSE(watch_.suspect()->is_by_link);
  EXPECT_EQ(Lasted(), absl::Seconds(10));
  EXPECT_NEAR(watch_.waited(), (0.8 + 0.1 + 0.7) / 3, 1e-9);
  Train(20, {0.2, 0.9, 0.3});
  EXPECT_EQ(Lasted(), absl::Seconds(30));
}

TEST_F(StragglerWatchTest, SaysWhetherItIsByItsLink) {
  slow_phase_ = WorkerPhase::kPush;
  Train(11, {0.2, 0.9, 0.3});
  ASSERT_TRUE(watch_.suspect());
  EXPECT_TRUE(watch_.suspect()->is_by_link);
}

TEST_F(StragglerWatchTest, IsOneOnlyByTheWholeFactor) {
  Train(11, {0.2, 0.59, 0.3});
  EXPECT_FALSE(watch_.suspect());
}

TEST_F(StragglerWatchTest, AreNotTwoThatAreAlikeSlow) {
  Train(31, {0.2, 0.9, 0.8});
  EXPECT_FALSE(watch_.suspect()) << "it would be one after the other";
}

TEST_F(StragglerWatchTest, IsClearedByOneWindowThatSaysSomethingElse) {
  Train(31, {0.2, 0.9, 0.3});
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
  for (int i = 0; i < 11; ++i) {
    for (MemberView& member : job_.members) {
      ++member.phases.steps;
      member.phases[WorkerPhase::kCompute] += member.rank == 1 ? 0.9 : 0.2;
    }
    now_ += absl::Seconds(1);
    watch_.Look(job_, now_);
  }
  EXPECT_FALSE(watch_.suspect());
}

TEST_F(StragglerWatchTest, IsAnotherWithANewProcess) {
  Train(21, {0.2, 0.9, 0.3});
  job_.members[1].incarnation = 20;
  job_.members[1].phases = {};
  Train(1, {0.2, 0.9, 0.3});  // begins anew
  Train(10, {0.2, 0.9, 0.3});
  EXPECT_EQ(Lasted(), absl::Seconds(10));
}

TEST_F(StragglerWatchTest, IsNobodyWhoWaitsOutside) {
  job_.members[1].is_outside = true;
  Train(11, {0.2, 0.9, 0.3});
  EXPECT_FALSE(watch_.suspect()) << "0.3 is not twice 0.2";
}

TEST_F(StragglerWatchTest, WaitsForSlowStepsAMinute) {
  Train(1, {0.2, 0.9, 0.3});
  for (int i = 0; i < 6; ++i) {
    now_ += absl::Seconds(29);
    Train(1, {0.2, 0.9, 0.3});
  }
  ASSERT_TRUE(watch_.suspect());
  EXPECT_EQ(Lasted(), absl::Minutes(3));
}

TEST_F(StragglerWatchTest, IsForgottenWhileTheJobStandsStill) {
  Train(21, {0.2, 0.9, 0.3});
  for (int i = 0; i < 70; ++i) {
    now_ += absl::Seconds(1);
    watch_.Look(job_, now_);
  }
  EXPECT_FALSE(watch_.suspect());
  EXPECT_EQ(watch_.waited(), 0);
}

TEST_F(StragglerWatchTest, LeavesOutTheTimeOfAnotherPhase) {
  Train(21, {0.2, 0.9, 0.3});
  job_.phase = "waiting";
  Train(100, {0.2, 0.9, 0.3});
  EXPECT_EQ(Lasted(), absl::Seconds(20));
  job_.phase = "running";
  Train(11, {0.2, 0.9, 0.3});
  EXPECT_EQ(Lasted(), absl::Seconds(30));
}

TEST_F(StragglerWatchTest, IsNobodyByWhatIsNoNumber) {
  for (const double odd : {std::nan(""), std::numeric_limits<double>::infinity(), -5.0}) {
    StragglerWatchTest::watch_ = StragglerWatch(2);
    Train(11, {0.2, odd, 0.3});
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
  Train(11, {0.9});
  EXPECT_FALSE(watch_.suspect());
}

}  // namespace
}  // namespace syncline
