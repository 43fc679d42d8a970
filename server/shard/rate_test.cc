// Rate factors that workers multiply the learning rate with: kFlagRate.
#include <bit>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

TrainingSettings Training(double rate, const char* optimizer = "adamw") {
  return {.optimizer = {.name = optimizer, .options = {{"lr", rate}}}};
}

// Two members, one block. Rank r has incarnation 10 + r: rank 0 joined first.
class Rig : public ShardRig {
 public:
  explicit Rig(const TrainingSettings& training)
      : ShardRig({.codec = "fp32", .training = training}) {
    Commit(1, {Member(0), Member(1)});
    Seed(0, SomeValues(100, 1));
  }
};

ShardMessage WithRate(ShardMessage message, float factor) {
  message.header.flags |= kFlagRate;
  message.header.shard = std::bit_cast<uint32_t>(factor);
  return message;
}

ShardOutputs Push(ShardRig& rig, uint32_t rank, uint64_t step, float factor) {
  return rig.shard().Apply(
      WithRate(rig.PushMessage(rank, 0, step, rig.PushOf(rank, 0, step)), factor));
}

TEST(RateFactors, MultiplyTheLearningRateOfTheirStep) {
  Rig halved(Training(0.5));
  Rig scaled(Training(1));
  for (uint64_t step = 0; step < 2; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      halved.Push(rank, 0, step);
      Push(scaled, rank, step, 0.5f);
    }
  }
  EXPECT_EQ(scaled.Weights(0), halved.Weights(0));
  // After a step without a factor, the job's own rate holds again.
  Rig both(Training(1));
  const std::vector<float> before = both.Weights(0);
  for (uint32_t rank = 0; rank < 2; ++rank) Push(both, rank, 0, 0);
  EXPECT_EQ(both.Weights(0), before) << "a rate of 0";
  for (uint32_t rank = 0; rank < 2; ++rank) both.Push(rank, 0, 1);
  EXPECT_NE(both.Weights(0), before);
}

TEST(RateFactors, AreThoseOfWhoJoinedFirstWhoeverComesFirst) {
  Rig reference(Training(1));
  Rig first(Training(1));
  Rig last(Training(1));
  Push(reference, 0, 0, 0.5f);
  Push(reference, 1, 0, 0.5f);
  Push(first, 0, 0, 0.5f);
  Push(first, 1, 0, 2.0f);
  Push(last, 1, 0, 2.0f);
  Push(last, 0, 0, 0.5f);
  EXPECT_EQ(first.Weights(0), reference.Weights(0));
  EXPECT_EQ(last.Weights(0), reference.Weights(0));
}

TEST(RateFactors, OfAnUpdateWhoseLastPushesAreSkipsAreThoseBefore) {
  TrainingSettings training = Training(1, "sgd");
  training.accumulate_steps = 2;
  Rig rig(training);
  training.optimizer.options["lr"] = 0.5;
  Rig halved(training);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Push(rig, rank, 0, 0.5f);
    halved.Push(rank, 0, 0);
  }
  for (Rig* one : {&rig, &halved}) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ShardMessage skip = {one->Header(MessageKind::kPush, rank, 0, 1), {}};
      skip.header.samples = 0;
      one->shard().Apply(skip);
    }
  }
  EXPECT_EQ(rig.Weights(0), halved.Weights(0));
}

TEST(RateFactors, ThatMakeNoSenseAreRefused) {
  Rig rig(Training(1));
  for (const float factor : {-0.5f, 2e6f, std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity()}) {
    EXPECT_THAT(Lines(Push(rig, 0, 0, factor)), ElementsAre("refuse r0 malformed"));
  }
  ShardMessage skip = {rig.Header(MessageKind::kPush, 0, 0, 0), {}};
  skip.header.samples = 0;
  EXPECT_THAT(Lines(rig.shard().Apply(WithRate(skip, 0.5f))),
              ElementsAre("refuse r0 malformed"));
  EXPECT_THAT(Lines(rig.shard().Apply(
                  WithRate(rig.PartingMessage(0, 0, 0, rig.PushOf(0, 0, 0)), 0.5f))),
              ElementsAre("refuse r0 malformed"));
  Rig whole(Training(1, "lbfgs"));
  EXPECT_THAT(Lines(Push(whole, 0, 0, 0.5f)), ElementsAre("refuse r0 malformed"));
}

}  // namespace
}  // namespace syncline
