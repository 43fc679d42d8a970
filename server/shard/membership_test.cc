// Epochs: which members are waited for when members come and go in the middle of steps.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Prepare(ShardRig& rig, uint64_t epoch) {
  return Lines(rig.shard().Apply(ShardPrepare{epoch}));
}

std::vector<std::string> Commit(ShardRig& rig, uint64_t epoch,
                                const std::vector<ShardMember>& members) {
  return Lines(rig.Commit(epoch, members));
}

std::vector<std::string> Decide(ShardRig& rig, uint64_t step) {
  return Lines(rig.shard().Apply(ShardDecision{.step = step}));
}

// Two workers, two blocks, seeded.
ShardRig TwoBlocks(const TrainingSettings& training = {}) {
  return ShardRig({.training = training, .tensors = {100, 200}});
}

void Begin(ShardRig& rig) {
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  rig.Seed(0, SomeValues(100, 1));
  rig.Seed(1, SomeValues(200, 2));
}

TEST(ShardEpochs, DroppingTheMissingMemberCompletesTheStepWithoutIt) {
  ShardRig rig = TwoBlocks();
  Begin(rig);
  Reference reference({}, SomeValues(100, 1));
  rig.Push(0, 0, 0);
  rig.Push(1, 1, 0);  // will not count: its sender is dropped
  Prepare(rig, 2);
  EXPECT_THAT(Commit(rig, 2, {rig.Member(0)}),
              ElementsAre("committed e2", "applied b0 s0 by r0", "publish r0 b0 v1"));
  reference.Step({rig.PushOf(0, 0, 0)}, "bf16");
  EXPECT_EQ(rig.Weights(0), reference.weights());
  EXPECT_EQ(rig.Weights(1), SomeValues(200, 2));
  EXPECT_THAT(Lines(rig.Push(0, 1, 0)),
              ElementsAre("ack r0 b1 s0", "applied b1 s0 by r0", "publish r0 b1 v1"));
  EXPECT_THAT(Lines(rig.Push(1, 1, 0)), ElementsAre("refuse r1 not a member"));
}

TEST(ShardEpochs, AContributionHeldUnderTheOldEpochStillCounts) {
  ShardRig rig = TwoBlocks();
  Begin(rig);
  rig.Push(0, 0, 0);
  Prepare(rig, 2);
  Commit(rig, 2, {rig.Member(0), rig.Member(1), rig.Member(2, 1)});
  EXPECT_THAT(Lines(rig.Push(0, 0, 0)), ElementsAre("ack r0 b0 s0"));
  EXPECT_THAT(Lines(rig.Push(1, 0, 0)),
              ElementsAre("ack r1 b0 s0", "applied b0 s0 by r0 r1", "publish r0 b0 v1",
                          "publish r1 b0 v1"));
}

TEST(ShardEpochs, NothingFromTheHeldStepOnCompletesUntilTheCommit) {
  ShardRig rig = TwoBlocks();
  Begin(rig);
  rig.Push(0, 0, 0);
  rig.Push(1, 0, 0);
  EXPECT_THAT(Prepare(rig, 2), ElementsAre("prepared e2 s1"));
  rig.Push(0, 1, 0);  // before the held step: it is made
  EXPECT_THAT(Lines(rig.Push(1, 1, 0)),
              ElementsAre("ack r1 b1 s0", "applied b1 s0 by r0 r1", "publish r0 b1 v1",
                          "publish r1 b1 v1"));
  for (const uint32_t block : {1u, 0u}) {
    rig.Push(0, block, 1);
    EXPECT_THAT(Lines(rig.Push(1, block, 1)),
                ElementsAre(block == 0 ? "ack r1 b0 s1" : "ack r1 b1 s1"));
  }
  EXPECT_THAT(Prepare(rig, 2), ElementsAre("prepared e2 s1"));
  // In the order of the blocks; worker 2 joins at step 2.
  EXPECT_THAT(Commit(rig, 2, {rig.Member(0), rig.Member(1), rig.Member(2, 2)}),
              ElementsAre("committed e2", "applied b0 s1 by r0 r1", "publish r0 b0 v2",
                          "publish r1 b0 v2", "applied b1 s1 by r0 r1",
                          "publish r0 b1 v2", "publish r1 b1 v2"));
}

TEST(ShardEpochs, AJoinerTakesPartFromExactlyItsFirstStep) {
  ShardRig rig = TwoBlocks();
  Begin(rig);
  Prepare(rig, 2);
  Commit(rig, 2, {rig.Member(0), rig.Member(1), rig.Member(2, 1)});
  EXPECT_THAT(Lines(rig.Push(2, 0, 0)), ElementsAre("refuse r2 wrong step"));
  EXPECT_THAT(Lines(rig.Pull(2, 0, 1)), ElementsAre("noted r2 b0 v1"));
  rig.Push(0, 0, 0);
  const ShardOutputs outputs = rig.Push(1, 0, 0);
  EXPECT_THAT(Lines(outputs),
              ElementsAre("ack r1 b0 s0", "applied b0 s0 by r0 r1", "publish r0 b0 v1",
                          "publish r1 b0 v1", "publish r2 b0 v1"));
  rig.Push(0, 0, 1);
  EXPECT_THAT(Lines(rig.Push(1, 0, 1)), ElementsAre("ack r1 b0 s1"));
  EXPECT_THAT(Lines(rig.Push(2, 0, 1))[1], "applied b0 s1 by r0 r1 r2");
}

TEST(ShardEpochs, ARestartedWorkerIsAnotherMember) {
  ShardRig rig = TwoBlocks();
  Begin(rig);
  rig.Push(1, 0, 0);
  rig.Pull(1, 0, 1);
  Prepare(rig, 2);
  ShardMember again = rig.Member(1, 1);
  again.incarnation = 99;
  again.session_key = 5;
  Commit(rig, 2, {rig.Member(0), again});
  EXPECT_THAT(Lines(rig.Push(1, 0, 0)), ElementsAre("refuse r1 not a member"));
  EXPECT_THAT(Lines(rig.Push(0, 0, 0)),
              ElementsAre("ack r0 b0 s0", "applied b0 s0 by r0", "publish r0 b0 v1"));
}

TEST(ShardEpochs, AStepThatLostAllItsContributorsPassesWithoutAChange) {
  ShardRig rig = TwoBlocks();
  Begin(rig);
  rig.Push(0, 0, 0);
  rig.Push(1, 0, 0);  // block 0 is at version 1, block 1 at 0
  EXPECT_THAT(Prepare(rig, 2), ElementsAre("prepared e2 s1"));
  EXPECT_THAT(Commit(rig, 2, {rig.Member(2, 1)}),
              ElementsAre("committed e2", "applied b1 s0 skipped"));
  EXPECT_EQ(rig.Weights(1), SomeValues(200, 2));
  EXPECT_THAT(Lines(rig.Push(2, 1, 1))[1], "applied b1 s1 by r2");
}

TEST(ShardEpochs, WithoutMembersNothingHappens) {
  ShardRig rig = TwoBlocks();
  Begin(rig);
  Prepare(rig, 2);
  EXPECT_THAT(Commit(rig, 2, {}), ElementsAre("committed e2"));
  EXPECT_EQ(rig.shard().block_version(0), 0u);
}

TEST(ShardEpochs, OldPreparesAndCommitsChangeNothing) {
  ShardRig rig = TwoBlocks();
  Begin(rig);
  EXPECT_THAT(Prepare(rig, 1), IsEmpty());
  EXPECT_THAT(Commit(rig, 1, {}), ElementsAre("committed e1"));
  EXPECT_EQ(rig.shard().epoch(), 1u);
  rig.Push(0, 0, 0);
  EXPECT_THAT(Lines(rig.Push(1, 0, 0))[1], "applied b0 s0 by r0 r1");
}

TEST(ShardDecided, ACompleteBlockWaitsForTheDecisionOfItsStep) {
  ShardRig rig = TwoBlocks(Decided());
  Begin(rig);
  rig.Push(0, 0, 0);
  rig.Push(1, 0, 0);
  EXPECT_THAT(Decide(rig, 1), IsEmpty());
  EXPECT_EQ(rig.Weights(0), SomeValues(100, 1));
  EXPECT_THAT(Lines(rig.Push(1, 0, 0)), ElementsAre("ack r1 b0 s0"));
  rig.Push(1, 1, 0);
  EXPECT_THAT(Lines(rig.Push(0, 1, 0)), ElementsAre("ack r0 b1 s0", "figures b1 s0"));
  EXPECT_THAT(Decide(rig, 0), ElementsAre("applied b0 s0 by r0 r1", "publish r0 b0 v1",
                                          "publish r1 b0 v1", "applied b1 s0 by r0 r1",
                                          "publish r0 b1 v1", "publish r1 b1 v1"));
  EXPECT_THAT(Decide(rig, 0), IsEmpty());
}

TEST(ShardDecided, AFrozenBlockKeepsItsContributorsThroughACommit) {
  ShardRig rig = TwoBlocks(Decided());
  Begin(rig);
  rig.Push(0, 0, 0);
  rig.Push(1, 0, 0);
  EXPECT_THAT(Prepare(rig, 2), ElementsAre("prepared e2 s1"));
  ShardMember again = rig.Member(1, 1);
  again.incarnation = 99;
  EXPECT_THAT(Commit(rig, 2, {rig.Member(0), again}), ElementsAre("committed e2"));
  EXPECT_THAT(Lines(rig.Push(0, 1, 0)), ElementsAre("ack r0 b1 s0", "figures b1 s0"));
  EXPECT_THAT(Decide(rig, 0), ElementsAre("applied b0 s0 by r0 r1", "publish r0 b0 v1",
                                          "applied b1 s0 by r0", "publish r0 b1 v1"));
}

TEST(ShardDecided, AHeldBlockDoesNotEvenFreeze) {
  ShardRig rig = TwoBlocks(Decided());
  Begin(rig);
  EXPECT_THAT(Prepare(rig, 2), ElementsAre("prepared e2 s0"));
  rig.Push(0, 0, 0);
  EXPECT_THAT(Lines(rig.Push(1, 0, 0)), ElementsAre("ack r1 b0 s0"));
  EXPECT_THAT(Commit(rig, 2, {rig.Member(0), rig.Member(1)}),
              ElementsAre("committed e2", "figures b0 s0"));
}

}  // namespace
}  // namespace syncline
