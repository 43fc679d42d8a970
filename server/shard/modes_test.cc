// The step rules, and shards that follow them.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"
#include "server/shard/sync_policy.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

std::unique_ptr<const SyncPolicy> Ahead(uint64_t staleness) {
  return MakeSyncPolicy({.kind = SyncMode::Kind::kSsp, .staleness = staleness});
}

TEST(SyncPolicy, TakesStepsUpToTheLimitAndEachOnce) {
  const auto policy = Ahead(2);
  const auto ruling = [&](PushFacts facts) { return policy->Judge(facts); };
  EXPECT_EQ(ruling({.step = 4, .version = 5}), PushRuling::kCounted);
  for (const uint64_t step : {5, 6, 7}) {
    EXPECT_EQ(ruling({.step = step, .version = 5}), PushRuling::kTake);
    EXPECT_EQ(ruling({.step = step, .version = 5, .is_held = true}), PushRuling::kHeld);
  }
  EXPECT_EQ(ruling({.step = 8, .version = 5}), PushRuling::kRefuse);
  EXPECT_EQ(ruling({.step = 6, .version = 5, .next_step = 7}), PushRuling::kRefuse);
  EXPECT_EQ(ruling({.step = 5, .version = 5, .is_complete = true}), PushRuling::kRefuse);
  EXPECT_EQ(ruling({.step = 6, .version = 5, .is_complete = true}), PushRuling::kTake);
}

TEST(SyncPolicy, WithoutStalenessOnlyTheStepUnderWayIsTaken) {
  const auto policy = MakeSyncPolicy({});
  EXPECT_EQ(policy->Judge({.step = 5, .version = 5}), PushRuling::kTake);
  EXPECT_EQ(policy->Judge({.step = 6, .version = 5}), PushRuling::kRefuse);
  EXPECT_FALSE(policy->StepsNow({.expected = 3, .present = 2}));
  EXPECT_TRUE(policy->StepsNow({.expected = 3, .present = 3}));
}

RigOptions StaleRig(uint64_t staleness) {
  RigOptions options;
  options.training.mode = {.name = "ssp",
                           .values = {{"staleness", static_cast<double>(staleness)}}};
  return options;
}

class StaleShard : public ::testing::Test {
 protected:
  StaleShard() {
    rig_.Commit(1, {rig_.Member(0), rig_.Member(1)});
    rig_.Seed(0, SomeValues(100, 1));
  }
  std::vector<std::string> Push(uint32_t rank, uint64_t step) {
    return Lines(rig_.Push(rank, 0, step));
  }

  ShardRig rig_{StaleRig(2)};
};

TEST_F(StaleShard, HoldsStepsAheadAndMakesThemInOrderOnceAllAreThere) {
  for (const uint64_t step : {0, 1, 2}) {
    EXPECT_THAT(Push(0, step), ElementsAre("ack r0 b0 s" + std::to_string(step)));
  }
  EXPECT_THAT(Push(0, 3), ElementsAre("refuse r0 wrong step"));
  EXPECT_THAT(Push(0, 1), ElementsAre("ack r0 b0 s1")) << "a repetition";
  EXPECT_THAT(Push(1, 0), ElementsAre("ack r1 b0 s0", "applied b0 s0 by r0 r1",
                                      "publish r0 b0 v1", "publish r1 b0 v1"));
  EXPECT_THAT(Push(1, 1), Contains("applied b0 s1 by r0 r1"));
  EXPECT_EQ(rig_.shard().block_version(0), 2u);
}

TEST_F(StaleShard, GivesTheBitsOfLockstepWhateverTheOrderOfArrival) {
  ShardRig lockstep{RigOptions{}};
  lockstep.Commit(1, {lockstep.Member(0), lockstep.Member(1)});
  lockstep.Seed(0, SomeValues(100, 1));
  for (uint64_t step = 0; step < 3; ++step) {
    for (const uint32_t rank : {0u, 1u}) lockstep.Push(rank, 0, step);
  }
  for (const uint64_t step : {0, 1, 2}) Push(1, step);
  for (const uint64_t step : {0, 1, 2}) Push(0, step);
  EXPECT_EQ(rig_.Weights(0), lockstep.Weights(0));
}

TEST_F(StaleShard, WhatTheDeadGaveToStepsAheadIsDroppedAndTheOthersGoOn) {
  for (const uint64_t step : {0, 1, 2}) Push(0, step);
  Push(1, 0);
  Push(1, 1);
  const size_t held = rig_.shard().resident_bytes();
  EXPECT_THAT(Lines(rig_.Commit(2, {rig_.Member(1)})), ElementsAre("committed e2"));
  EXPECT_LT(rig_.shard().resident_bytes(), held);
  EXPECT_THAT(Push(1, 2), Contains("applied b0 s2 by r1"));
}

TEST_F(StaleShard, AJoinerIsPartOfStepsThatOthersHaveGivenAlready) {
  for (const uint64_t step : {0, 1, 2}) Push(0, step);
  Push(1, 0);
  EXPECT_THAT(Lines(rig_.shard().Apply(ShardPrepare{2})), ElementsAre("prepared e2 s1"));
  rig_.Commit(2, {rig_.Member(0), rig_.Member(1), rig_.Member(2, 1)});
  EXPECT_THAT(Push(1, 1), Not(Contains("applied b0 s1 by r0 r1")));
  EXPECT_THAT(Push(2, 1), Contains("applied b0 s1 by r0 r1 r2"));
}

TEST_F(StaleShard, NobodyOwesUntilSomebodyIsAtTheLimit) {
  const auto owed = [&] { return rig_.shard().Progress().members[1].owed; };
  for (const uint64_t step : {0, 1}) {
    Push(0, step);
    EXPECT_EQ(owed(), 0u) << "worker 0 may still compute";
  }
  Push(0, 2);
  EXPECT_EQ(owed(), 1u);
  Push(1, 0);
  EXPECT_EQ(owed(), 0u);
}

TEST_F(StaleShard, AStepWithoutAChangeGoesOutAsAWholeView) {
  Push(0, 0);
  ShardMessage skip = {rig_.Header(MessageKind::kPush, 1, 0, 0), {}};
  skip.header.samples = 0;
  rig_.shard().Apply(skip);
  for (const uint32_t rank : {0u, 1u}) {
    skip.header = rig_.Header(MessageKind::kPush, rank, 0, 1);
    skip.header.samples = 0;
    const auto lines = Lines(rig_.shard().Apply(skip));
    EXPECT_THAT(lines, Not(Contains("unchanged r0 b0 v2")));
    if (rank == 0) continue;
    EXPECT_THAT(lines, Contains("publish r0 b0 v2"));
  }
}

}  // namespace
}  // namespace syncline
