// Tensors that become the mean of what is pushed (server/optimizer/mean.h).
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::FloatEq;

constexpr uint32_t kElements = 100;

// Two tensors, of which the second takes the mean.
RigOptions WithMean(const TrainingSettings& training) {
  return {.codec = "fp32",
          .training = training,
          .tensors = {kElements, kElements},
          .means = {1}};
}

void Begin(ShardRig& rig, uint32_t workers) {
  std::vector<ShardMember> members;
  for (uint32_t rank = 0; rank < workers; ++rank) members.push_back(rig.Member(rank));
  rig.Commit(1, members);
  for (const uint32_t block : {0, 1}) rig.Seed(block, SomeValues(kElements, 1));
}

ShardOutputs PushAll(ShardRig& rig, uint32_t rank, uint32_t block, uint64_t step,
                     float value) {
  return rig.shard().Apply(
      rig.PushMessage(rank, block, step, {std::vector<float>(kElements, value), 1}));
}

TEST(ShardMean, IsWhatWasPushedWhateverTheOptimizer) {
  ShardRig rig(WithMean({.optimizer = {.name = "adamw", .options = {{"lr", 0.01}}},
                         .schedule = {.name = "constant"},
                         .gradient = {{"clip_value", 0.5}}}));
  Begin(rig, 2);
  for (uint64_t step = 0; step < 3; ++step) {
    PushAll(rig, 0, 1, step, 3.0f);
    PushAll(rig, 1, 1, step, 6.0f + static_cast<float>(step));
    EXPECT_THAT(rig.Weights(1), Each(FloatEq(4.5f + static_cast<float>(step) / 2)));
  }
}

TEST(ShardMean, OfThoseWhoseContributionCounts) {
  ShardRig rig(WithMean({}));
  Begin(rig, 2);
  PushAll(rig, 0, 1, 0, 3.0f);
  PushAll(rig, 1, 1, 0, 5.0f);
  EXPECT_THAT(rig.Weights(1), Each(4.0f));
  PushAll(rig, 0, 1, 1, 3.0f);
  rig.Commit(2, {rig.Member(1)});
  PushAll(rig, 1, 1, 1, 7.0f);
  EXPECT_THAT(rig.Weights(1), Each(7.0f)) << "of 0, who is gone, nothing stays";
}

TEST(ShardMean, HasNoPartInTheNormAndStepsThoughTheJobSkips) {
  ShardRig rig(WithMean(Decided({.options = {{"lr", 1}}})));
  Begin(rig, 1);
  const std::vector<float> before = rig.Weights(0);
  PushAll(rig, 0, 0, 0, 2.0f);
  const ShardOutputs outputs = PushAll(rig, 0, 1, 0, 5.0f);
  const auto& figures = std::get<ShardFigures>(outputs.back());
  EXPECT_EQ(figures.block, 1u);
  EXPECT_THAT(figures.figures, Each(0.0));
  const auto decided = Lines(rig.shard().Apply(
      ShardDecision{.step = 0, .verdict = ShardDecision::Verdict::kSkip}));
  EXPECT_THAT(decided, Contains("applied b0 s0 skipped"));
  EXPECT_THAT(decided, Contains("applied b1 s0 by r0"));
  EXPECT_EQ(rig.Weights(0), before);
  EXPECT_THAT(rig.Weights(1), Each(5.0f));
}

TEST(ShardMean, IsReplayedThoughTheJobSkipped) {
  RigOptions options = WithMean(Decided({.options = {{"lr", 1}}}));
  ShardRig again(options);
  options.records = Records::kKept;
  ShardRig rig(options);
  rig.Commit(1, {rig.Member(0)});
  const auto replay = [&](const ShardOutputs& outputs) {
    for (const ShardOutput& output : outputs) {
      const auto* kept = std::get_if<ShardRecorded>(&output);
      if (kept == nullptr) continue;
      const auto replayed = again.shard().Replay(*kept->record);
      ASSERT_TRUE(replayed.ok()) << replayed.status();
    }
  };
  for (const uint32_t block : {0, 1}) replay(rig.Seed(block, SomeValues(kElements, 1)));
  for (uint64_t step = 0; step < 4; ++step) {
    for (const uint32_t block : {0, 1}) {
      PushAll(rig, 0, block, step, 2.0f + static_cast<float>(step));
    }
    replay(rig.shard().Apply(
        ShardDecision{.step = step,
                      .verdict = step % 2 == 0 ? ShardDecision::Verdict::kSkip
                                               : ShardDecision::Verdict::kApply}));
  }
  EXPECT_THAT(rig.Weights(1), Each(5.0f));
  for (const uint32_t block : {0, 1}) EXPECT_EQ(rig.Weights(block), again.Weights(block));
}

TEST(ShardMean, KnowsNoLossScale) {
  ShardRig rig(WithMean({.optimizer = {.options = {{"lr", 1}}},
                         .loss_scaling = {"torch", {{"init_scale", 8}}}}));
  Begin(rig, 1);
  PushAll(rig, 0, 0, 0, 2.0f);
  PushAll(rig, 0, 1, 0, 5.0f);
  rig.shard().Apply(ShardDecision{.step = 0, .gradient_scale = 0.5f, .loss_scale = 8});
  EXPECT_THAT(rig.Weights(1), Each(5.0f));
}

}  // namespace
}  // namespace syncline
