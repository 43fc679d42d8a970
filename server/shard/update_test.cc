// What makes an update: several pushes, sums on arrival, loss scales, kinds of
// contributions, tensors that step as a whole, frozen tensors, and new settings during
// the job.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

constexpr uint32_t kElements = 100;

const OptimizerSettings kPlainSgd = {.name = "sgd", .options = {{"lr", 0.5}}};

void Begin(ShardRig& rig, uint32_t workers) {
  std::vector<ShardMember> members;
  for (uint32_t rank = 0; rank < workers; ++rank) members.push_back(rig.Member(rank));
  rig.Commit(1, members);
  rig.Seed(0, SomeValues(kElements, 1));
}

// A push whose gradient is `value` everywhere.
ShardOutputs PushAll(ShardRig& rig, uint32_t rank, uint64_t step, float value,
                     uint32_t samples) {
  return rig.shard().Apply(
      rig.PushMessage(rank, 0, step, {std::vector<float>(kElements, value), samples}));
}

void ExpectMoved(const ShardRig& rig, float distance) {
  const std::vector<float> before = SomeValues(kElements, 1);
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_NEAR(rig.Weights(0)[i], before[i] - distance, 1e-6) << i;
  }
}

TEST(ShardAccumulation, UpdatesOnceForSeveralPushesWithTheMeanOfAllSamples) {
  ShardRig rig({.training = {.optimizer = kPlainSgd, .accumulate_steps = 2}});
  Begin(rig, 2);
  PushAll(rig, 0, 0, 1.0f, 1);
  EXPECT_THAT(Lines(PushAll(rig, 1, 0, 2.0f, 2)),
              ElementsAre("ack r1 b0 s0", "applied b0 s0 by r0 r1", "unchanged r0 b0 v1",
                          "unchanged r1 b0 v1"));
  ExpectMoved(rig, 0);
  PushAll(rig, 0, 1, 3.0f, 3);
  EXPECT_THAT(Lines(PushAll(rig, 1, 1, 4.0f, 4)), Contains("publish r0 b0 v2"));
  ExpectMoved(rig, 0.5f * (1 + 4 + 9 + 16) / 10);
  PushAll(rig, 0, 2, 1.0f, 1);  // the next update starts at zero
  PushAll(rig, 1, 2, 1.0f, 1);
  PushAll(rig, 0, 3, 1.0f, 1);
  PushAll(rig, 1, 3, 1.0f, 1);
  ExpectMoved(rig, 0.5f * 3 + 0.5f * 1);
}

TEST(ShardAccumulation, AJoinerGetsTheWeightsBetweenTwoPushes) {
  ShardRig rig({.training = {.optimizer = kPlainSgd, .accumulate_steps = 2}});
  Begin(rig, 1);
  PushAll(rig, 0, 0, 1.0f, 1);
  rig.Commit(2, {rig.Member(0), rig.Member(1, 1)});
  EXPECT_THAT(Lines(rig.Pull(1, 0, 1)), ElementsAre("publish r1 b0 v1"));
}

TEST(ShardArrival, KeepsOneSumInsteadOfAllContributions) {
  ShardRig held({.training = {.optimizer = kPlainSgd}});
  ShardRig added(
      {.training = {.optimizer = kPlainSgd, .aggregation = Aggregation::kArrival}});
  for (ShardRig* rig : {&held, &added}) Begin(*rig, 3);
  const size_t before = added.shard().resident_bytes();
  PushAll(added, 2, 0, 4.0f, 1);
  PushAll(added, 0, 0, 1.0f, 2);
  EXPECT_EQ(added.shard().resident_bytes(), before);
  EXPECT_THAT(Lines(PushAll(added, 2, 0, 4.0f, 1)), ElementsAre("ack r2 b0 s0"))
      << "a repetition";
  EXPECT_THAT(Lines(PushAll(added, 1, 0, 2.0f, 1)),
              Contains("applied b0 s0 by r0 r1 r2"));
  ExpectMoved(added, 0.5f * (2 + 2 + 4) / 4);
  const size_t empty = held.shard().resident_bytes();
  PushAll(held, 2, 0, 4.0f, 1);
  EXPECT_GT(held.shard().resident_bytes(), empty);
}

// Both pushes were acknowledged, and neither can be taken out of the sum.
TEST(ShardArrival, EachLifeOfARankCounts) {
  ShardRig rig(
      {.training = {.optimizer = kPlainSgd, .aggregation = Aggregation::kArrival}});
  Begin(rig, 2);
  PushAll(rig, 1, 0, 2.0f, 1);
  ShardMember again = rig.Member(1);
  again.incarnation = 99;
  rig.Commit(2, {rig.Member(0), again});
  ShardMessage push = rig.PushMessage(1, 0, 0, {std::vector<float>(kElements, 7.0f), 1});
  push.header.incarnation = 99;
  EXPECT_THAT(Lines(rig.shard().Apply(push)), ElementsAre("ack r1 b0 s0"));
  const ShardOutputs outputs = PushAll(rig, 0, 0, 1.0f, 1);
  EXPECT_THAT(Lines(outputs), Contains("applied b0 s0 by r0 r1 r1"));
  ExpectMoved(rig, 0.5f * (2 + 7 + 1) / 3);
}

float LossScaleOf(const ShardOutputs& outputs) {
  return std::bit_cast<float>(std::get<ShardReply>(outputs.back()).header.samples);
}

TEST(ShardLossScale, UnscalesWithTheScaleOfTheStepAndPublishesThatOfTheNext) {
  ShardRig rig({.training = {.optimizer = kPlainSgd,
                             .loss_scaling = {"torch", {{"init_scale", 8}}}}});
  Begin(rig, 1);
  EXPECT_EQ(LossScaleOf(rig.Pull(0, 0, 0)), 8);
  PushAll(rig, 0, 0, 8.0f, 1);
  const ShardOutputs outputs = rig.shard().Apply(ShardDecision{.loss_scale = 16});
  EXPECT_EQ(LossScaleOf(outputs), 16);
  ExpectMoved(rig, 0.5f);
  PushAll(rig, 0, 1, 16.0f, 1);
  rig.shard().Apply(ShardDecision{.step = 1, .loss_scale = 16});
  ExpectMoved(rig, 1.0f);
}

TEST(ShardLossScale, AStepThatIsNotFiniteChangesNothing) {
  ShardRig rig({.training = {.optimizer = {.name = "adamw"}, .loss_scaling = {"torch"}}});
  Begin(rig, 1);
  const ShardSnapshot before = *rig.shard().Save();
  const ShardOutputs figures =
      PushAll(rig, 0, 0, std::numeric_limits<float>::infinity(), 1);
  EXPECT_FALSE(std::isfinite(std::get<ShardFigures>(figures.back()).figures[0]));
  EXPECT_THAT(
      Lines(rig.shard().Apply(ShardDecision{.verdict = ShardDecision::Verdict::kSkip})),
      ElementsAre("applied b0 s0 skipped", "unchanged r0 b0 v1"));
  const ShardSnapshot after = *rig.shard().Save();
  EXPECT_EQ(after.blocks.at(0).weights, before.blocks.at(0).weights);
  EXPECT_EQ(after.blocks.at(0).state, before.blocks.at(0).state);
  EXPECT_EQ(after.blocks.at(0).updates, 0u);
}

TEST(ShardWhole, BlocksOfATensorStepTogetherWhenTheOptimizerLooksAtAllOfIt) {
  ShardRig rig(
      {.training = {.optimizer = {.name = "lamb"}}, .tensors = {2 * kTileElements + 10}});
  rig.Commit(1, {rig.Member(0)});
  rig.Seed(0, SomeValues(2 * kTileElements, 1));
  rig.Seed(1, SomeValues(10, 2));
  EXPECT_THAT(Lines(rig.Push(0, 1, 0)), ElementsAre("ack r0 b1 s0"));
  EXPECT_THAT(Lines(rig.Push(0, 0, 0)),
              ElementsAre("ack r0 b0 s0", "applied b0 s0 by r0", "publish r0 b0 v1",
                          "applied b1 s0 by r0", "publish r0 b1 v1"));
}

TEST(ShardSettings, ChangeAtTheStepThatTheCommitNames) {
  ShardRig rig({.training = {.optimizer = kPlainSgd}});
  Begin(rig, 1);
  ShardCommit commit{.epoch = 2, .members = {rig.Member(0)}};
  commit.training = TrainingSettings{.optimizer = kPlainSgd};
  commit.training->optimizer.options["lr"] = 2.0;
  commit.training_from = 1;
  rig.shard().Apply(commit);
  PushAll(rig, 0, 0, 1.0f, 1);
  ExpectMoved(rig, 0.5f);
  PushAll(rig, 0, 1, 1.0f, 1);
  ExpectMoved(rig, 0.5f + 2.0f);
}

TEST(ShardSettings, OfStepsThatATensorHasNotReachedAreKept) {
  ShardRig rig({.training = {.optimizer = kPlainSgd}, .tensors = {kElements, kElements}});
  Begin(rig, 1);
  rig.Seed(1, std::vector<float>(kElements, 0.0f));
  const auto change = [&](uint64_t epoch, double rate, uint64_t from) {
    ShardCommit commit{.epoch = epoch, .members = {rig.Member(0)}};
    commit.training = TrainingSettings{.optimizer = kPlainSgd};
    commit.training->optimizer.options["lr"] = rate;
    commit.training_from = from;
    rig.shard().Apply(commit);
  };
  PushAll(rig, 0, 0, 1.0f, 1);
  change(2, 4.0, 1);
  PushAll(rig, 0, 1, 1.0f, 1);
  change(3, 16.0, 2);
  // The first step of the other tensor still has the first settings.
  const std::vector<float> ones(kElements, 1.0f);
  float expected = 0;
  for (const float rate : {0.5f, 4.0f, 16.0f}) {
    const uint64_t step = rig.shard().block_version(1);
    rig.shard().Apply(rig.PushMessage(0, 1, step, {ones, 1}));
    expected -= rate;
    EXPECT_EQ(rig.Weights(1)[0], expected) << step;
  }
}

TEST(ShardSettings, TheScheduleFollowsTheUpdates) {
  ShardRig rig({.training = {.optimizer = kPlainSgd,
                             .schedule = {"step", {{"step_size", 1}, {"gamma", 0.5}}}}});
  Begin(rig, 1);
  for (uint64_t step = 0; step < 3; ++step) PushAll(rig, 0, step, 1.0f, 1);
  ExpectMoved(rig, 0.5f + 0.25f + 0.125f);
}

TEST(ShardAverages, ArePulledInFp32WithoutTouchingTheWeights) {
  ShardRig rig(
      {.training = {
           .optimizer = {.name = "sgd", .options = {{"lr", 0.5}, {"ema_decay", 0.75}}}}});
  Begin(rig, 1);
  const auto pull = [&] {
    const ShardOutputs outputs = rig.shard().Apply(
        ShardMessage{rig.Header(MessageKind::kPullAverage, 0, 0, 0), {}});
    const auto& reply = std::get<ShardReply>(outputs.at(0));
    EXPECT_EQ(reply.header.kind, static_cast<uint16_t>(MessageKind::kAverage));
    const Buffer payload = Gather(reply.payload);
    const auto view = ParseBlock(payload.view(), {rig.range(0), reply.header.step, 1},
                                 {&rig.codec("fp32")});
    std::vector<float> values(kElements);
    EXPECT_TRUE(view.ok() && rig.codec("fp32").Decode(view->tiles[0].bytes, values).ok());
    return values;
  };
  EXPECT_EQ(pull(), SomeValues(kElements, 1)) << "nothing to average yet";
  PushAll(rig, 0, 0, 1.0f, 1);
  const std::vector<float> average = pull();
  for (size_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(average[i], SomeValues(kElements, 1)[i] - 0.25f * 0.5f, 1e-6);
  }
  ExpectMoved(rig, 0.5f);
}

TEST(ShardAverages, OfAJobThatKeepsNoneAreRefused) {
  ShardRig rig({.training = {.optimizer = kPlainSgd}});
  Begin(rig, 1);
  EXPECT_THAT(Lines(rig.shard().Apply(
                  ShardMessage{rig.Header(MessageKind::kPullAverage, 0, 0, 0), {}})),
              ElementsAre("refuse r0 no average"));
}

// ---- The optimizer's state ----

constexpr uint64_t kLarge = 5000;  // large enough for 8-bit state

std::vector<float> PullState(ShardRig& rig, uint32_t array) {
  MessageHeader header = rig.Header(MessageKind::kPullState, 0, 0, 0);
  header.samples = array;
  const ShardOutputs outputs = rig.shard().Apply(ShardMessage{header, {}});
  const auto& reply = std::get<ShardReply>(outputs.at(0));
  EXPECT_EQ(reply.header.kind, static_cast<uint16_t>(MessageKind::kState));
  EXPECT_EQ(reply.header.samples, array);
  EXPECT_EQ(reply.header.shard, 3u) << "updates";
  const Buffer payload = Gather(reply.payload);
  const auto view = ParseBlock(payload.view(), {rig.range(0), reply.header.step, 1},
                               {&rig.codec("fp32")});
  std::vector<float> values(kLarge);
  EXPECT_TRUE(view.ok() && rig.codec("fp32").Decode(view->tiles[0].bytes, values).ok());
  return values;
}

struct Seeding {
  uint32_t rank = 0;
  uint32_t updates = 3;
};

ShardOutputs SeedState(ShardRig& rig, uint32_t array, const std::vector<float>& values,
                       Seeding by = {}) {
  ShardMessage message = rig.SeedMessage(by.rank, 0, values);
  message.header.kind = static_cast<uint16_t>(MessageKind::kSeedState);
  message.header.samples = array;
  message.header.shard = by.updates;
  EXPECT_EQ(*rig.shard().MaxPayloadBytes(message.header),
            MaxBlockBytes(rig.codec("fp32"), values.size()));
  return rig.shard().Apply(message);
}

ShardOutputs SeedWeights(ShardRig& rig, const std::vector<float>& values,
                         Seeding by = {}) {
  ShardMessage message = rig.SeedMessage(by.rank, 0, values);
  message.header.samples = by.updates;
  return rig.shard().Apply(message);
}

RigOptions AdamWith(const char* state) {
  return {.training = {.optimizer = {.name = "adamw", .state = state}},
          .tensors = {kLarge}};
}

TEST(ShardState, AJobThatBeginsWithItGoesOnAsTheOtherDid) {
  for (const char* state : {"f32", "bf16", "int8"}) {
    const RigOptions options = AdamWith(state);
    ShardRig from(options), to(options);
    from.Commit(1, {from.Member(0)});
    from.Seed(0, SomeValues(kLarge, 1));
    for (uint64_t step = 0; step < 3; ++step) from.Push(0, 0, step);
    to.Commit(1, {to.Member(0)});
    for (uint32_t array = 0; array < 2; ++array) {
      EXPECT_THAT(Lines(SeedState(to, array, PullState(from, array))),
                  ElementsAre("ack r0 b0 s0"));
    }
    EXPECT_THAT(Lines(SeedWeights(to, from.Weights(0))), ElementsAre("ack r0 b0 s0"));
    EXPECT_EQ(PullState(to, 1), PullState(from, 1)) << state;
    SeedState(to, 0, SomeValues(kLarge, 8));
    EXPECT_EQ(PullState(to, 0), PullState(from, 0)) << "a repetition";
    from.Push(0, 0, 3);
    to.shard().Apply(to.PushMessage(0, 0, 0, from.PushOf(0, 0, 3)));
    EXPECT_EQ(to.Weights(0), from.Weights(0)) << state;
  }
}

// The seeder dies in the middle. The next one brings no state, or other state.
TEST(ShardState, OfADeadSeederIsNobodys) {
  for (const char* state : {"f32", "bf16", "int8"}) {
    ShardRig rig(AdamWith(state)), fresh(AdamWith(state));
    rig.Commit(1, {rig.Member(0), rig.Member(1)});
    for (uint32_t array = 0; array < 2; ++array) {
      SeedState(rig, array, SomeValues(kLarge, 7 + array));
    }
    rig.Commit(2, {rig.Member(1)});
    SeedWeights(rig, SomeValues(kLarge, 1), {.rank = 1, .updates = 0});
    fresh.Commit(2, {rig.Member(1)});
    SeedWeights(fresh, SomeValues(kLarge, 1), {.rank = 1, .updates = 0});
    const auto snapshot = [](ShardRig& of) { return of.shard().Save()->blocks.at(0); };
    EXPECT_EQ(snapshot(rig).state, snapshot(fresh).state) << state;
    EXPECT_EQ(snapshot(rig).updates, 0u);
    rig.Push(1, 0, 0);
    fresh.Push(1, 0, 0);
    EXPECT_EQ(rig.Weights(0), fresh.Weights(0)) << state;
  }
}

TEST(ShardState, IsThatOfOneSeeder) {
  ShardRig rig(AdamWith("f32"));
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  const std::vector<float> first = SomeValues(kLarge, 7), second = SomeValues(kLarge, 8);
  const Seeding next = {.rank = 1, .updates = 3};
  SeedState(rig, 0, first, {.rank = 0, .updates = 90});
  EXPECT_THAT(Lines(SeedState(rig, 0, second, next)), ElementsAre("refuse r1 not seeded"))
      << "one after the other";
  rig.Commit(2, {rig.Member(1)});
  EXPECT_THAT(Lines(SeedState(rig, 1, second, next)), ElementsAre("refuse r1 not seeded"))
      << "the array before is not its own";
  EXPECT_THAT(Lines(SeedWeights(rig, first, next)), ElementsAre("refuse r1 not seeded"));
  EXPECT_THAT(Lines(SeedState(rig, 0, second, next)), ElementsAre("ack r1 b0 s0"));
  EXPECT_THAT(Lines(SeedWeights(rig, first, next)), ElementsAre("refuse r1 malformed"))
      << "an array is missing";
  EXPECT_THAT(Lines(SeedState(rig, 1, second, {.rank = 1, .updates = 4})),
              ElementsAre("refuse r1 malformed"));
  SeedState(rig, 1, first, next);
  SeedState(rig, 0, second, next);  // a repetition
  EXPECT_THAT(Lines(SeedWeights(rig, first, {.rank = 1, .updates = 4})),
              ElementsAre("refuse r1 malformed"));
  EXPECT_EQ(rig.shard().Progress().unseeded, 1u);
  EXPECT_THAT(Lines(SeedWeights(rig, first, next)), ElementsAre("ack r1 b0 s0"));
  const BlockSnapshot held = rig.shard().Save()->blocks.at(0);
  EXPECT_EQ(held.updates, 3u);
  const auto bytes = [](const std::vector<float>& values) {
    const auto of = std::as_bytes(std::span(values));
    return std::vector<std::byte>(of.begin(), of.end());
  };
  EXPECT_THAT(held.state, ElementsAre(bytes(second), bytes(first)));
}

TEST(ShardState, ThatTheOptimizerHasNotIsRefused) {
  ShardRig rig({.training = {.optimizer = kPlainSgd}, .tensors = {kLarge}});
  rig.Commit(1, {rig.Member(0)});
  EXPECT_THAT(Lines(SeedState(rig, 0, SomeValues(kLarge, 1))),
              ElementsAre("refuse r0 malformed"));
  rig.Seed(0, SomeValues(kLarge, 1));
  EXPECT_THAT(Lines(rig.shard().Apply(
                  ShardMessage{rig.Header(MessageKind::kPullState, 0, 0, 0), {}})),
              ElementsAre("refuse r0 no average"));
}

TEST(ShardFrozen, TensorsAreSeededOnceAndNeverStep) {
  BufferPool pool(1 << 20);
  const CodecRegistry codecs = CodecRegistry::Builtin();
  ShardOptions options;
  options.seed_codec = *codecs.Find(CodecId::kFp32);
  options.transfers = {
      {.push = *ParseTransfer("fp32"), .publish = *ParseTransfer("fp32")}};
  const uint64_t elements = 4;
  options.tensors = {{.shape = TensorShape({&elements, 1}), .group = {.frozen = true}}};
  const BlockRange range = {.tensor = 0, .first_element = 0, .elements = 4};
  const auto shard = *Shard::Create(options, {{0, range}}, pool);
  shard->Apply(ShardCommit{1, {{0, 0, 0, 0}}});
  const auto tell = [&](MessageKind kind, float value) {
    MessageHeader header;
    header.epoch = 1;
    header.samples = kind == MessageKind::kPush ? 1 : 0;
    header.kind = static_cast<uint16_t>(kind);
    std::vector<float> values(4, value);
    return shard->Apply(ShardMessage{
        header, Slice::Of(Gather(EncodeBlock(*options.seed_codec, {range, 0, 1}, values,
                                             Checksum::kHeaderOnly, pool)))});
  };
  tell(MessageKind::kSeed, 1);
  tell(MessageKind::kSeed, 2);
  EXPECT_THAT(shard->block_weights(0), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(Lines(tell(MessageKind::kPush, 3)), ElementsAre("refuse r0 wrong step"));
}

}  // namespace
}  // namespace syncline
