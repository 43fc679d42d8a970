#include "server/coordinator/cuts.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsNull;
using testing::NotNull;
using testing::Pair;

// A job with one trained block, so that each figure decides a step.
class CutsTest : public testing::Test {
 protected:
  static TrainingSettings Settings() {
    TrainingSettings settings;
    settings.nonfinite_steps = NonfiniteSteps::kSkip;
    return settings;
  }
  static TrainedBlocks OneBlock() {
    TrainedBlocks blocks;
    blocks.Add(true);
    return blocks;
  }

  // Decides the steps up to `steps`. Each is skipped, so that their count tells them
  // apart.
  void DecideUpTo(uint64_t steps, bool is_scheduled = false) {
    while (decisions_.decided() < steps) {
      ASSERT_TRUE(decisions_.Add(0, decisions_.decided(), {INFINITY}));
      cuts_.NoteDecided(is_scheduled);
    }
  }
  const Cut* Write(uint32_t server, uint64_t step, absl::Status status = {}) {
    return cuts_.Add(server, {.step = step,
                              .status = std::move(status),
                              .files = {{.bytes = 10}},
                              .took = absl::Seconds(server)});
  }
  static CheckpointName At(uint64_t step) { return {.run = 1, .step = step}; }

  DecisionMaker decisions_{Settings(), OneBlock(), 0};
  Cuts cuts_{decisions_};
};

TEST_F(CutsTest, IsCompleteWhenEachServerHasWritten) {
  cuts_.Begin(4, {1, 2});
  EXPECT_THAT(Write(2, 4), IsNull());
  EXPECT_THAT(Write(2, 4), IsNull()) << "a repetition";
  const Cut* cut = Write(1, 4);
  ASSERT_THAT(cut, NotNull());
  EXPECT_EQ(cut->files.size(), 2u);
  EXPECT_EQ(cut->took, absl::Seconds(2)) << "the slowest";
  cuts_.Finish(At(4), absl::Seconds(100));
  EXPECT_FALSE(cuts_.contains(4));
  EXPECT_TRUE(cuts_.HasEnded(4));
  const CheckpointView view = cuts_.View(absl::Seconds(103));
  EXPECT_EQ(view.latest, At(4).ToString());
  EXPECT_EQ(view.bytes, 20u);
  EXPECT_EQ(view.age, absl::Seconds(3));
  EXPECT_FALSE(view.is_under_way);
}

TEST_F(CutsTest, OneServersErrorIsTheCuts) {
  cuts_.Begin(4, {1, 2});
  Write(1, 4, absl::ResourceExhaustedError("disk full"));
  const Cut* cut = Write(2, 4);
  ASSERT_THAT(cut, NotNull());
  EXPECT_EQ(cut->status.message(), "disk full");
  cuts_.Fail(At(4), cut->status);
  EXPECT_THAT(cuts_.saved().error, HasSubstr("disk full"));
  EXPECT_EQ(cuts_.saved().failed, 1u);
  EXPECT_TRUE(cuts_.HasEnded(4));
  cuts_.TryAgain(4);
  EXPECT_FALSE(cuts_.HasEnded(4));
}

TEST_F(CutsTest, TheOldestThatServersDoNotAnswerIsOneTooMany) {
  for (uint64_t step = 1; step <= 8; ++step) cuts_.Begin(step, {1});
  EXPECT_EQ(cuts_.OneTooMany(8), std::nullopt);
  Write(1, 1);  // it is with the keeper, who answers
  cuts_.Begin(9, {1});
  EXPECT_EQ(cuts_.OneTooMany(9), 2u);
  EXPECT_EQ(cuts_.OneTooMany(2), 3u) << "not the one that was begun last";
}

TEST_F(CutsTest, ServersHaveHalfAnHour) {
  cuts_.Begin(1, {1, 2});
  cuts_.Begin(2, {1});
  EXPECT_THAT(cuts_.Late(absl::Seconds(7)), IsEmpty());
  Write(1, 1);
  Write(1, 2);
  EXPECT_THAT(cuts_.Late(absl::Seconds(6) + Cuts::kLimit), IsEmpty());
  EXPECT_THAT(cuts_.Late(absl::Seconds(7) + Cuts::kLimit), ElementsAre(Pair(1, 2)));
  EXPECT_THAT(cuts_.AwaitedOf(2), ElementsAre(1));
  EXPECT_THAT(cuts_.AwaitedOf(1), IsEmpty());
}

TEST_F(CutsTest, HasTheLossScaleOfItsStep) {
  DecideUpTo(1, /*is_scheduled=*/true);
  DecideUpTo(2);
  cuts_.Begin(1, {1});  // decided before, and kept for it
  cuts_.Begin(2, {1});  // decided last
  cuts_.Begin(3, {1});  // still to be decided
  DecideUpTo(4);
  for (const uint64_t step : {1, 2, 3}) {
    const Cut* cut = Write(1, step);
    ASSERT_THAT(cut, NotNull());
    EXPECT_TRUE(cut->status.ok()) << cut->status;
    EXPECT_EQ(cut->scaling->skipped, step);
  }
}

TEST_F(CutsTest, IsNotToBeHadWithoutIt) {
  DecideUpTo(3);
  cuts_.Begin(2, {1});  // nobody thought of it when it was decided
  const Cut* cut = Write(1, 2);
  ASSERT_THAT(cut, NotNull());
  EXPECT_THAT(std::string(cut->status.message()),
              HasSubstr("its loss scale is no longer known"));
}

TEST_F(CutsTest, WithoutDecisionsTheLossScaleNeverChanges) {
  cuts_.Begin(2, {1});
  const Cut* cut = Write(1, 2);
  ASSERT_THAT(cut, NotNull());
  EXPECT_TRUE(cut->status.ok());
  EXPECT_EQ(cut->scaling->skipped, 0u);
}

TEST_F(CutsTest, WhatAnEarlierCoordinatorBeganIsLost) {
  decisions_.Resume(6, {});
  cuts_.Restore(/*last=*/4, {.latest = "run1-step2", .step = 2, .written = 1});
  EXPECT_TRUE(cuts_.IsLost(4));
  EXPECT_FALSE(cuts_.IsLost(5));
  cuts_.Begin(5, {1});
  EXPECT_EQ(cuts_.FirstLost(), std::nullopt);
  cuts_.NoteLost(5);  // a server that is back had copied its blocks
  EXPECT_EQ(cuts_.FirstLost(), 5u);
  EXPECT_EQ(cuts_.last(), 5u);
  const Cut* cut = Write(1, 5);
  ASSERT_THAT(cut, NotNull());
  EXPECT_THAT(std::string(cut->status.message()), HasSubstr("restarted"));
}

TEST_F(CutsTest, NothingLaterThanTheEndIsWaitedFor) {
  for (const uint64_t step : {2, 4, 6}) cuts_.Begin(step, {1});
  EXPECT_THAT(cuts_.KeepUpTo(4), ElementsAre(2, 4));
  EXPECT_FALSE(cuts_.contains(6));
}

}  // namespace
}  // namespace syncline
