// Members that have no gradient for a step: pushes of 0 samples.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

const OptimizerSettings kSgd = {.name = "sgd", .options = {{"lr", 1.0}}};

ShardMessage SkipOf(const ShardRig& rig, uint32_t rank, uint32_t block, uint64_t step) {
  ShardMessage message = {rig.Header(MessageKind::kPush, rank, block, step), {}};
  message.header.samples = 0;
  return message;
}

std::vector<std::string> Skip(ShardRig& rig, uint32_t rank, uint64_t step) {
  return Lines(rig.shard().Apply(SkipOf(rig, rank, 0, step)));
}

// Three members, one block.
ShardRig Rig(const TrainingSettings& training) {
  return ShardRig({.codec = "fp32", .training = training});
}
void Begin(ShardRig& rig) {
  rig.Commit(1, {rig.Member(0), rig.Member(1), rig.Member(2)});
  rig.Seed(0, SomeValues(100, 1));
}

class Skips : public ::testing::TestWithParam<Aggregation> {
 protected:
  static TrainingSettings Training() {
    return {.optimizer = {.name = "adamw", .options = {{"lr", 0.1}}},
            .aggregation = GetParam()};
  }
};

INSTANTIATE_TEST_SUITE_P(Aggregations, Skips,
                         ::testing::Values(Aggregation::kRankOrder,
                                           Aggregation::kArrival));

TEST_P(Skips, CountAsTheMembersContributionAndWeighNothing) {
  ShardRig rig = Rig(Training());
  Begin(rig);
  Reference reference(Training().optimizer, SomeValues(100, 1));
  EXPECT_THAT(Skip(rig, 1, 0), ElementsAre("ack r1 b0 s0"));
  rig.Push(2, 0, 0);
  EXPECT_THAT(Lines(rig.Push(0, 0, 0)), Contains("applied b0 s0 by r0 r2"));
  if (GetParam() == Aggregation::kRankOrder) {
    reference.Step({rig.PushOf(0, 0, 0), rig.PushOf(2, 0, 0)}, "fp32");
    EXPECT_EQ(rig.Weights(0), reference.weights());
  }
  EXPECT_EQ(rig.shard().block_version(0), 1u);
}

TEST_P(Skips, GiveTheBitsOfOneMemberWhoeverComesFirst) {
  ShardRig before = Rig(Training());
  ShardRig after = Rig(Training());
  ShardRig alone = Rig(Training());
  Begin(before);
  Begin(after);
  alone.Commit(1, {alone.Member(1)});
  alone.shard().Apply(alone.SeedMessage(1, 0, SomeValues(100, 1)));
  for (uint64_t step = 0; step < 3; ++step) {
    Skip(before, 0, step);
    Skip(before, 2, step);
    before.Push(1, 0, step);
    after.Push(1, 0, step);
    Skip(after, 2, step);
    Skip(after, 0, step);
    alone.Push(1, 0, step);
  }
  EXPECT_EQ(before.Weights(0), alone.Weights(0));
  EXPECT_EQ(after.Weights(0), alone.Weights(0));
}

TEST_P(Skips, OfAllMembersAdvanceTheVersionAndNothingElse) {
  ShardRig rig = Rig(Training());
  ShardRig direct = Rig(Training());
  Begin(rig);
  Begin(direct);
  Skip(rig, 0, 0);
  Skip(rig, 1, 0);
  EXPECT_THAT(Skip(rig, 2, 0),
              ElementsAre("ack r2 b0 s0", "applied b0 s0 skipped", "unchanged r0 b0 v1",
                          "unchanged r1 b0 v1", "unchanged r2 b0 v1"));
  EXPECT_EQ(rig.Weights(0), SomeValues(100, 1));
  // The optimizer did not see that step.
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const Reference::Push push = rig.PushOf(rank, 0, 1);
    rig.shard().Apply(rig.PushMessage(rank, 0, 1, push));
    direct.shard().Apply(direct.PushMessage(rank, 0, 0, push));
  }
  EXPECT_EQ(rig.shard().block_version(0), 2u);
  EXPECT_EQ(rig.Weights(0), direct.Weights(0));
}

TEST_P(Skips, AreRepeatedWithoutEffect) {
  ShardRig rig = Rig(Training());
  Begin(rig);
  Skip(rig, 1, 0);
  EXPECT_THAT(Skip(rig, 1, 0), ElementsAre("ack r1 b0 s0"));
  // What comes after the skip is a repetition, whatever it carries.
  EXPECT_THAT(Lines(rig.Push(1, 0, 0)), ElementsAre("ack r1 b0 s0"));
  rig.Push(0, 0, 0);
  EXPECT_THAT(Lines(rig.Push(2, 0, 0)), Contains("applied b0 s0 by r0 r2"));
  EXPECT_THAT(Skip(rig, 1, 0), ElementsAre("ack r1 b0 s0", "publish r1 b0 v1"));
}

TEST_P(Skips, OfAMemberThatLeavesAreForgotten) {
  ShardRig rig = Rig(Training());
  Begin(rig);
  rig.Push(0, 0, 0);
  Skip(rig, 1, 0);
  rig.shard().Apply(ShardPrepare{2});
  EXPECT_THAT(Lines(rig.Commit(2, {rig.Member(0), rig.Member(2)})),
              ElementsAre("committed e2"));
  EXPECT_THAT(Lines(rig.Push(2, 0, 0)), Contains("applied b0 s0 by r0 r2"));
}

TEST(SkipMessages, CarryNothing) {
  ShardRig rig = Rig({.optimizer = kSgd});
  Begin(rig);
  ShardMessage skip = SkipOf(rig, 0, 0, 0);
  EXPECT_EQ(*rig.shard().MaxPayloadBytes(skip.header), 0u);
  skip.payload = rig.PushMessage(0, 0, 0, rig.PushOf(0, 0, 0)).payload;
  EXPECT_THAT(Lines(rig.shard().Apply(skip)), ElementsAre("refuse r0 malformed"));
  skip = SkipOf(rig, 0, 0, 0);
  skip.header.flags = kFlagParting;
  EXPECT_THAT(Lines(rig.shard().Apply(skip)), ElementsAre("refuse r0 malformed"));
  EXPECT_THAT(Skip(rig, 0, 1), ElementsAre("refuse r0 wrong step"));
  EXPECT_THAT(Skip(rig, 0, 0), ElementsAre("ack r0 b0 s0"));
}

// L-BFGS keeps pairs of steps and gradients for all tensors together.
TEST(SkipMessages, AreRefusedWhereTheOptimizerNeedsEveryGradient) {
  ShardRig rig = Rig({.optimizer = {.name = "lbfgs", .options = {{"lr", 1.0}}}});
  Begin(rig);
  EXPECT_THAT(Skip(rig, 0, 0), ElementsAre("refuse r0 malformed"));
}

TEST(SkipsOfAJobThatScalesTheLoss, AreFinite) {
  ShardRig rig = Rig({.optimizer = kSgd, .loss_scaling = {.name = "torch"}});
  Begin(rig);
  Skip(rig, 0, 0);
  Skip(rig, 1, 0);
  const ShardOutputs outputs = rig.shard().Apply(SkipOf(rig, 2, 0, 0));
  ASSERT_THAT(Lines(outputs), ElementsAre("ack r2 b0 s0", "figures b0 s0"));
  EXPECT_THAT(std::get<ShardFigures>(outputs[1]).figures, ElementsAre(0.0));
  EXPECT_THAT(Lines(rig.shard().Apply(ShardDecision{.step = 0, .loss_scale = 8})),
              Contains("applied b0 s0 skipped"));
  EXPECT_EQ(rig.Weights(0), SomeValues(100, 1));
}

TEST(SkipsOfAnAccumulatedUpdate, LeaveTheOtherPushesTheirWeight) {
  ShardRig rig = Rig({.optimizer = kSgd, .accumulate_steps = 2});
  ShardRig all = Rig({.optimizer = kSgd, .accumulate_steps = 2});
  Begin(rig);
  Begin(all);
  // Only one member pushes, in either of the two pushes.
  for (const uint64_t pushes : {0u, 1u}) {
    for (uint64_t step = 0; step < 2; ++step) {
      const uint64_t now = 2 * pushes + step;
      Skip(rig, 0, now);
      Skip(rig, 2, now);
      step == pushes ? rig.Push(1, 0, now) : rig.shard().Apply(SkipOf(rig, 1, 0, now));
    }
  }
  const auto gradient = [&](uint64_t step) { return rig.PushOf(1, 0, step).gradient; };
  std::vector<float> expected = SomeValues(100, 1);
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = expected[i] - gradient(0)[i] - gradient(3)[i];
  }
  EXPECT_THAT(rig.Weights(0),
              ::testing::Pointwise(::testing::FloatNear(1e-6f), expected));
}

// The schedule counts steps, whatever members took part in them.
TEST(SkipsUnderASchedule, AreStepsOfIt) {
  ShardRig rig = Rig({.optimizer = kSgd,
                      .schedule = {.name = "exponential", .values = {{"gamma", 0.5}}}});
  rig.Commit(1, {rig.Member(0)});
  rig.Seed(0, std::vector<float>(100, 0.0f));
  Skip(rig, 0, 0);
  rig.shard().Apply(rig.PushMessage(0, 0, 1, {std::vector<float>(100, 2.0f), 1}));
  EXPECT_EQ(rig.Weights(0)[0], -1.0f);
}

TEST(SkipsOfAVote, AreNoVotes) {
  ShardRig rig({.codec = "bf16",
                .publish = "fp32",
                .push = "signsgd",
                .training = {.optimizer = kSgd}});
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  rig.Seed(0, std::vector<float>(100, 0.0f));
  Skip(rig, 0, 0);
  rig.shard().Apply(rig.PushMessage(1, 0, 0, {std::vector<float>(100, -7.0f), 1}));
  EXPECT_EQ(rig.Weights(0)[0], 1.0f);
}

}  // namespace
}  // namespace syncline
