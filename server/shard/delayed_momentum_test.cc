// Delayed Nesterov momentum in mode asp.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::Each;

constexpr size_t kElements = 100;

// Two contributions make one step of the momentum.
RigOptions Options() {
  RigOptions options = {.codec = "fp32", .tensors = {kElements}};
  options.training.optimizer = {
      .name = "sgd",
      .options = {{"lr", 1}, {"momentum", 0.5}, {"nesterov", 1}, {"momentum_every", 2}}};
  options.training.mode.name = "asp";
  return options;
}

// Two workers that have the first values, all zero.
std::unique_ptr<ShardRig> Begun() {
  auto rig = std::make_unique<ShardRig>(Options());
  rig->Commit(1, {rig->Member(0), rig->Member(1)});
  rig->Seed(0, std::vector<float>(kElements));
  for (const uint32_t rank : {0u, 1u}) rig->Pull(rank, 0, 0);
  return rig;
}

ShardOutputs Push(ShardRig& rig, uint32_t rank, uint64_t step, float value) {
  return rig.shard().Apply(
      rig.PushMessage(rank, 0, step, {std::vector<float>(kElements, value), 1}));
}

TEST(DelayedMomentum, MovesAtEveryNthContributionWhoeverGaveIt) {
  const auto rig = Begun();
  Push(*rig, 0, 0, 2);
  EXPECT_THAT(rig->Weights(0), Each(-1.0f));  // 2 / 2
  Push(*rig, 1, 0, 4);
  EXPECT_THAT(rig->Weights(0), Each(-4.5f));  // m = 3; 0.5 m + 4 / 2
  Push(*rig, 1, 0, 4);
  EXPECT_THAT(rig->Weights(0), Each(-4.5f)) << "a repetition is no contribution";
  Push(*rig, 1, 1, 2);
  EXPECT_THAT(rig->Weights(0), Each(-5.5f));  // 2 / 2
  Push(*rig, 1, 2, 0);
  EXPECT_THAT(rig->Weights(0), Each(-6.75f));  // m = 1.5 + 1; 0.5 m
}

TEST(DelayedMomentum, CountsNoSkips) {
  const auto rig = Begun();
  Push(*rig, 0, 0, 2);
  ShardMessage skip = rig->PushMessage(1, 0, 0, {std::vector<float>(kElements), 0});
  skip.payload = {};
  EXPECT_THAT(Lines(rig->shard().Apply(skip)), Contains("applied b0 s1 skipped"));
  EXPECT_THAT(rig->Weights(0), Each(-1.0f));
  Push(*rig, 0, 1, 4);
  EXPECT_THAT(rig->Weights(0), Each(-4.5f)) << "it is the second";
}

TEST(DelayedMomentum, GoesOnWhereItWasInAnotherShard) {
  const auto rig = Begun();
  Push(*rig, 0, 0, 2);
  ShardRig other(Options());
  ASSERT_TRUE(other.shard().Load(*rig->shard().Save()).ok());
  other.Commit(2, {rig->Member(0, 1), rig->Member(1)});
  Push(other, 0, 1, 4);
  EXPECT_THAT(other.Weights(0), Each(-4.5f));
}

}  // namespace
}  // namespace syncline
