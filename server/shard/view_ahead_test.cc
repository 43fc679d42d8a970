// Mode asp with views ahead of the momentum.
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::Each;

constexpr size_t kElements = 100;

RigOptions Options(OptionValues momentum, OptionValues mode = {}) {
  RigOptions options = {.codec = "fp32", .tensors = {kElements}};
  momentum.insert({{"lr", 1}, {"momentum", 0.5}});
  options.training.optimizer = {.name = "sgd", .options = std::move(momentum)};
  options.training.mode = {.name = "asp", .values = std::move(mode)};
  return options;
}

// Two workers that have the first values, all zero.
std::unique_ptr<ShardRig> Begun(const RigOptions& options) {
  auto rig = std::make_unique<ShardRig>(options);
  rig->Commit(1, {rig->Member(0), rig->Member(1)});
  rig->Seed(0, std::vector<float>(kElements));
  for (const uint32_t rank : {0u, 1u}) rig->Pull(rank, 0, 0);
  return rig;
}

ShardOutputs Push(ShardRig& rig, uint32_t rank, uint64_t step, float value) {
  return rig.shard().Apply(
      rig.PushMessage(rank, 0, step, {std::vector<float>(kElements, value), 1}));
}

// Returns the view that the outputs send.
std::vector<float> ViewIn(const ShardRig& rig, const ShardOutputs& outputs) {
  for (const ShardOutput& output : outputs) {
    const auto* reply = std::get_if<ShardReply>(&output);
    if (reply == nullptr) continue;
    if (static_cast<MessageKind>(reply->header.kind) == MessageKind::kPublish) {
      return rig.Decode(*reply);
    }
  }
  return {};
}

TEST(ViewAhead, ShowsTheWeightsMinusTheMomentum) {
  const auto rig = Begun(Options({}, {{"view_ahead", 0.25}}));
  EXPECT_THAT(ViewIn(*rig, Push(*rig, 0, 0, 2)), Each(-2.5f));  // -2 - 0.25 * 2
  EXPECT_THAT(rig->Weights(0), Each(-2.0f)) << "the weights themselves stay";
  EXPECT_THAT(ViewIn(*rig, Push(*rig, 0, 1, 4)), Each(-8.25f));  // m = 5
  EXPECT_THAT(rig->Weights(0), Each(-7.0f));
  EXPECT_THAT(ViewIn(*rig, rig->Pull(1, 0, 0)), Each(-8.25f)) << "a whole view, too";
}

TEST(ViewAhead, OfTheFirstValuesIsTheValues) {
  const auto rig = Begun(Options({}, {{"view_ahead", 0.25}}));
  EXPECT_THAT(ViewIn(*rig, rig->Pull(1, 0, 0)), Each(0.0f));
}

// Every tile, also of state that is not kept in FP32.
TEST(ViewAhead, IsTheSameInAStepAndLaterAndOnAServerThatTakesOver) {
  for (const char* state : {"f32", "bf16", "int8"}) {
    SCOPED_TRACE(state);
    RigOptions options =
        Options({{"nesterov", 1}, {"momentum_every", 2}}, {{"view_ahead", 0.25}});
    options.tensors = {2 * kTileElements + 17};
    options.training.optimizer.state = state;
    ShardRig rig(options);
    rig.Commit(1, {rig.Member(0), rig.Member(1)});
    const uint32_t elements = rig.range(0).elements;
    ASSERT_GT(elements, kTileElements);
    rig.Seed(0, SomeValues(elements, 1));
    rig.Pull(0, 0, 0);
    for (uint64_t step = 0; step < 3; ++step) rig.Push(0, 0, step);
    const std::vector<float> shown = ViewIn(rig, rig.Push(0, 0, 3));
    ASSERT_EQ(shown.size(), elements);
    EXPECT_NE(shown, rig.Weights(0));
    EXPECT_EQ(ViewIn(rig, rig.Pull(1, 0, 0)), shown);
    ShardRig other(options);
    ASSERT_TRUE(other.shard().Load(*rig.shard().Save()).ok());
    other.Commit(2, {rig.Member(0, 4), rig.Member(1)});
    EXPECT_EQ(ViewIn(other, other.Pull(1, 0, 0)), shown);
  }
}

TEST(ViewAhead, OfTensorsWithoutMomentumIsTheirWeights) {
  RigOptions options = Options({}, {{"view_ahead", 0.25}});
  options.tensors = {kElements, kElements, kElements};
  options.frozen = {1};
  options.means = {2};
  ShardRig rig(options);
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  for (uint32_t block = 0; block < 3; ++block) {
    rig.Seed(block, std::vector<float>(kElements, 3));
    rig.Pull(0, block, 0);
  }
  EXPECT_THAT(ViewIn(rig, rig.Pull(1, 1, 0)), Each(3.0f));
  const ShardOutputs outputs =
      rig.shard().Apply(rig.PushMessage(0, 2, 0, {std::vector<float>(kElements, 7), 1}));
  EXPECT_THAT(ViewIn(rig, outputs), Each(7.0f));
}

}  // namespace
}  // namespace syncline
