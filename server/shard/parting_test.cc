// What leaving workers hand over counts, whenever the step is completed.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

const OptimizerSettings kSgd = {.name = "sgd", .options = {{"lr", 1.0}}};
const Reference::Push kKept = {{8, -16}, 1};

// Workers 0 and 1; weights begin as zeros and move by minus the gradient.
class Parting : public ::testing::TestWithParam<Aggregation> {
 protected:
  Parting() {
    rig_.Commit(1, {rig_.Member(0), rig_.Member(1)});
    rig_.Seed(0, {0, 0});
  }

  std::vector<std::string> Push(uint32_t rank, uint64_t step, Reference::Push push) {
    return Lines(rig_.shard().Apply(rig_.PushMessage(rank, 0, step, std::move(push))));
  }
  std::vector<std::string> Part(uint32_t rank, uint64_t step) {
    return Lines(rig_.shard().Apply(rig_.PartingMessage(rank, 0, step, kKept)));
  }
  std::vector<std::string> Commit(uint64_t epoch,
                                  const std::vector<ShardMember>& members) {
    rig_.shard().Apply(ShardPrepare{epoch});
    return Lines(rig_.Commit(epoch, members));
  }

  ShardRig rig_{{.codec = "bf16",
                 .publish = "fp32",
                 .training = {.optimizer = kSgd, .aggregation = GetParam()},
                 .tensors = {2}}};
};

INSTANTIATE_TEST_SUITE_P(Aggregations, Parting,
                         ::testing::Values(Aggregation::kRankOrder,
                                           Aggregation::kArrival));

TEST_P(Parting, AddsToTheMeanOfTheOthersWithoutThinningIt) {
  EXPECT_THAT(Part(1, 0), ElementsAre("ack r1 b0 s0"));
  EXPECT_THAT(Push(0, 0, {{2, 2}, 4}),
              ElementsAre("ack r0 b0 s0", "applied b0 s0 by r0 r1", "publish r0 b0 v1",
                          "publish r1 b0 v1"));
  // (4 * 2 + 1 * kept) / 4
  EXPECT_THAT(rig_.Weights(0), ElementsAre(-4, 2));
}

TEST_P(Parting, CountsAfterItsSenderHasLeft) {
  Part(1, 0);
  EXPECT_THAT(Commit(2, {rig_.Member(0)}), ElementsAre("committed e2"));
  EXPECT_THAT(Push(0, 0, {{2, 2}, 4}),
              ElementsAre("ack r0 b0 s0", "applied b0 s0 by r0 r1", "publish r0 b0 v1"));
  EXPECT_THAT(rig_.Weights(0), ElementsAre(-4, 2));
  Push(0, 1, {{1, 1}, 4});
  EXPECT_THAT(rig_.Weights(0), ElementsAre(-5, 1)) << "it counts once";
}

TEST_P(Parting, CountsOnceHoweverOftenItIsSent) {
  Part(1, 0);
  EXPECT_THAT(Part(1, 0), ElementsAre("ack r1 b0 s0"));
  Push(0, 0, {{2, 2}, 4});
  EXPECT_THAT(Part(1, 0), ElementsAre("ack r1 b0 s0", "publish r1 b0 v1"));
  EXPECT_THAT(rig_.Weights(0), ElementsAre(-4, 2));
}

TEST_P(Parting, CountsBesideANewLifeOfItsSender) {
  Part(1, 0);
  ShardMember again = rig_.Member(1, 0);
  again.incarnation = 99;
  Commit(2, {rig_.Member(0), again});
  Push(0, 0, {{2, 2}, 1});
  ShardMessage message = rig_.PushMessage(1, 0, 0, {{4, 4}, 1});
  message.header.incarnation = 99;
  EXPECT_THAT(Lines(rig_.shard().Apply(message))[1], "applied b0 s0 by r0 r1 r1");
  // ((2 + 4) + kept) / 2
  EXPECT_THAT(rig_.Weights(0), ElementsAre(-7, 5));
}

TEST_P(Parting, IsAMeanOfItsOwnWhenNobodyElseIsThere) {
  Part(0, 0);
  Part(1, 0);
  EXPECT_THAT(rig_.Weights(0), ElementsAre(-8, 16));
  EXPECT_EQ(rig_.shard().block_version(0), 1u);
}

TEST_P(Parting, IsForgottenLikeAnyOtherIfItIsNone) {
  Push(1, 0, kKept);
  Commit(2, {rig_.Member(0)});
  Push(0, 0, {{2, 2}, 4});
  const bool in_sum =
      GetParam() == Aggregation::kArrival;  // it cannot be taken out again
  EXPECT_EQ(rig_.Weights(0)[0], in_sum ? -(4 * 2 + 8) / 5.0f : -2);
}

// A parting contribution may be kept for long; memory that a program lends may not.
TEST(PartingFrames, LieInOnePlace) {
  ShardRig rig({.codec = "fp32", .tensors = {2}});
  rig.Commit(1, {rig.Member(0)});
  rig.Seed(0, {0, 0});
  ShardMessage message = InTwoPlaces(rig.PartingMessage(0, 0, 0, kKept));
  EXPECT_THAT(Lines(rig.shard().Apply(message)), ElementsAre("refuse r0 malformed"));
}

TEST(PartingFrames, ComeInFp32) {
  ShardRig rig({.codec = "bf16", .tensors = {2}});
  rig.Commit(1, {rig.Member(0)});
  rig.Seed(0, {0, 0});
  ShardMessage message = rig.PushMessage(0, 0, 0, kKept);
  message.header.flags = kFlagParting;
  EXPECT_THAT(Lines(rig.shard().Apply(message)), ElementsAre("refuse r0 malformed"));
  message = rig.PartingMessage(0, 0, 0, kKept);
  EXPECT_GE(*rig.shard().MaxPayloadBytes(message.header), message.payload.size());
  message.header.flags = 0;
  EXPECT_THAT(Lines(rig.shard().Apply(message)), ElementsAre("refuse r0 malformed"));
}

}  // namespace
}  // namespace syncline
