// The rules: which messages are accepted when, and what follows.
#include "server/shard/shard.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

// Members 0 and 1, one block, seeded, nothing pushed.
class TwoWorkers : public ::testing::Test {
 protected:
  TwoWorkers() {
    rig_.Commit(1, {rig_.Member(0), rig_.Member(1)});
    rig_.Seed(0, SomeValues(100, 1));
  }

  std::vector<std::string> Apply(const ShardMessage& message) {
    return Lines(rig_.shard().Apply(message));
  }

  ShardMessage GoodPush(uint32_t rank = 0) {
    return rig_.PushMessage(rank, 0, 0, rig_.PushOf(rank, 0, 0));
  }

  ShardRig rig_{RigOptions{}};
};

TEST_F(TwoWorkers, RefusalsComeInTheDocumentedOrder) {
  ShardMessage push = GoodPush();
  push.header.epoch = 0;
  push.header.block = 9;
  push.header.session_key = 1;
  push.header.incarnation = 1;
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 not a member"));
  push.header.incarnation = 10;
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 unauthenticated"));
  push.header.session_key = 1000;
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 unknown block"));
  push.header.block = 0;
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 stale epoch"));
  push.header.epoch = 2;
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 future epoch"));
  push.header.epoch = 1;
  EXPECT_THAT(Apply(push), ElementsAre("ack r0 b0 s0"));
}

TEST_F(TwoWorkers, AGradientThatLiesElsewhereThanItsHeadersCountsTheSame) {
  Apply(GoodPush(0));
  Apply(GoodPush(1));
  const auto weights = rig_.Weights(0);
  ShardRig other{RigOptions{}};
  other.Commit(1, {other.Member(0), other.Member(1)});
  other.Seed(0, SomeValues(100, 1));
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_THAT(Lines(other.shard().Apply(InTwoPlaces(GoodPush(rank)))),
                Contains(absl::StrCat("ack r", rank, " b0 s0")));
  }
  EXPECT_EQ(other.Weights(0), weights);
}

TEST_F(TwoWorkers, RepliesCarryWhoWhatAndTheShardsEpoch) {
  ShardMessage push = GoodPush();
  push.header.epoch = 0;
  const auto outputs = rig_.shard().Apply(push);
  const ShardReply& reply = std::get<ShardReply>(outputs[0]);
  EXPECT_EQ(reply.rank, 0u);
  EXPECT_EQ(reply.incarnation, 10u);
  EXPECT_EQ(reply.header.job, 7u);
  EXPECT_EQ(reply.header.shard, 3u);
  EXPECT_EQ(reply.header.session_key, 1000u);
  EXPECT_EQ(reply.header.epoch, 1u);
  EXPECT_TRUE(reply.payload.empty());
}

TEST_F(TwoWorkers, APushCountsOnceHoweverOftenItComes) {
  EXPECT_THAT(Apply(GoodPush(0)), ElementsAre("ack r0 b0 s0"));
  ShardMessage repeated = GoodPush(0);
  repeated.payload = {};  // the payload is not even looked at
  EXPECT_THAT(Apply(repeated), ElementsAre("ack r0 b0 s0"));
  EXPECT_THAT(Apply(GoodPush(1)), ElementsAre("ack r1 b0 s0", "applied b0 s0 by r0 r1",
                                              "publish r0 b0 v1", "publish r1 b0 v1"));
  const auto weights = rig_.Weights(0);
  EXPECT_THAT(Apply(repeated), ElementsAre("ack r0 b0 s0", "publish r0 b0 v1"));
  EXPECT_EQ(rig_.Weights(0), weights);
  EXPECT_EQ(rig_.shard().block_version(0), 1u);
}

TEST_F(TwoWorkers, APublishedViewIsEncodedOnceAndSharedByAll) {
  Apply(GoodPush(0));
  const auto outputs = rig_.shard().Apply(GoodPush(1));
  EXPECT_EQ(std::get<ShardReply>(outputs[2]).payload[0].data,
            std::get<ShardReply>(outputs[3]).payload[0].data);
}

TEST_F(TwoWorkers, AStepThatHasNotComeIsWrong) {
  ShardMessage push = rig_.PushMessage(0, 0, 1, rig_.PushOf(0, 0, 1));
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 wrong step"));
}

TEST_F(TwoWorkers, MalformedPushesChangeNothing) {
  const size_t resident = rig_.shard().resident_bytes();
  ShardMessage push = GoodPush();
  push.payload = {};
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 malformed"));
  push = GoodPush();
  push.payload.body.size -= 64;
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 malformed"));
  push = GoodPush();
  const_cast<std::byte*>(push.payload.body.data)[20] ^= std::byte{1};
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 malformed"));
  push.payload = rig_.SeedMessage(0, 0, SomeValues(100, 1)).payload;  // FP32, not BF16
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 malformed"));
  push = rig_.PushMessage(0, 0, 1, rig_.PushOf(0, 0, 1));  // frames of another step
  push.header.step = 0;
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 malformed"));
  push = GoodPush();
  push.header.kind = static_cast<uint16_t>(MessageKind::kAck);
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 malformed"));
  EXPECT_EQ(rig_.shard().resident_bytes(), resident);
  EXPECT_THAT(Apply(GoodPush()), ElementsAre("ack r0 b0 s0"));
  EXPECT_EQ(rig_.shard().resident_bytes(), resident + 64 + 256);
}

TEST_F(TwoWorkers, FramesOfAnotherEpochAreMalformed) {
  ShardMessage push = GoodPush();
  rig_.Commit(2, {rig_.Member(0), rig_.Member(1)});
  push.header.epoch = 2;
  EXPECT_THAT(Apply(push), ElementsAre("refuse r0 malformed"));
}

// Its payload was not taken when it came. Even if a newer epoch would accept it, it must
// not count as malformed, and the worker sends it again.
TEST_F(TwoWorkers, WhatWasRefusedOnArrivalIsRefusedForThatReason) {
  ShardMessage early = GoodPush();
  early.header.epoch = 2;
  EXPECT_EQ(rig_.shard().Check(early.header), RefuseCode::kFutureEpoch);
  early.refused = rig_.shard().Check(early.header);
  early.payload = {};
  rig_.Commit(2, {rig_.Member(0), rig_.Member(1)});
  EXPECT_EQ(rig_.shard().Check(early.header), RefuseCode::kNone);
  EXPECT_THAT(Apply(early), ElementsAre("refuse r0 future epoch"));
}

TEST_F(TwoWorkers, PullsAreAnsweredNowOrWhenTheVersionComes) {
  EXPECT_THAT(Lines(rig_.Pull(0, 0, 0)), ElementsAre("publish r0 b0 v0"));
  EXPECT_THAT(Lines(rig_.Pull(1, 0, 2)), ElementsAre("noted r1 b0 v2"));
  Apply(GoodPush(0));
  EXPECT_THAT(Apply(GoodPush(1)), ElementsAre("ack r1 b0 s0", "applied b0 s0 by r0 r1",
                                              "publish r0 b0 v1", "publish r1 b0 v1"));
  rig_.Push(0, 0, 1);
  // It is published once, although the member would get it anyway.
  EXPECT_THAT(Lines(rig_.Push(1, 0, 1)),
              ElementsAre("ack r1 b0 s1", "applied b0 s1 by r0 r1", "publish r0 b0 v2",
                          "publish r1 b0 v2"));
}

TEST_F(TwoWorkers, SaysHowLargeAPayloadMayBeBeforeItIsTaken) {
  const auto limit = [&](const ShardMessage& message) {
    return rig_.shard().MaxPayloadBytes(message.header);
  };
  EXPECT_EQ(*limit(GoodPush()), 64u + 256u);
  EXPECT_EQ(*limit(rig_.SeedMessage(0, 0, SomeValues(100, 1))), 64u + 448u);
  ShardMessage pull = GoodPush();
  pull.header.kind = static_cast<uint16_t>(MessageKind::kPull);
  EXPECT_EQ(*limit(pull), 0u);
  ShardMessage stranger = GoodPush();
  stranger.header.rank = 5;
  EXPECT_FALSE(limit(stranger).ok());
  ShardMessage stale = GoodPush();
  stale.header.epoch = 0;
  EXPECT_FALSE(limit(stale).ok());
}

TEST(ShardSeeding, PullsWaitForItAndPushesAreRefusedBefore) {
  ShardRig rig({});
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  EXPECT_THAT(Lines(rig.Push(0, 0, 0)), ElementsAre("refuse r0 not seeded"));
  EXPECT_THAT(Lines(rig.Pull(1, 0, 0)), ElementsAre("noted r1 b0 v0"));
  EXPECT_THAT(Lines(rig.Seed(0, SomeValues(100, 1))),
              ElementsAre("ack r0 b0 s0", "publish r1 b0 v0"));
  EXPECT_EQ(rig.Weights(0), SomeValues(100, 1));
}

TEST(ShardSeeding, TheFirstSeedStaysBecauseSomebodyMayHoldItAlready) {
  ShardRig rig({});
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  rig.Seed(0, SomeValues(100, 1));
  EXPECT_THAT(Lines(rig.Seed(0, SomeValues(100, 2))), ElementsAre("ack r0 b0 s0"));
  EXPECT_EQ(rig.Weights(0), SomeValues(100, 1));
  rig.Push(0, 0, 0);
  rig.Push(1, 0, 0);
  const auto weights = rig.Weights(0);
  EXPECT_THAT(Lines(rig.Seed(0, SomeValues(100, 3))), ElementsAre("ack r0 b0 s0"));
  EXPECT_EQ(rig.Weights(0), weights);
}

TEST(ShardSeeding, AMalformedSeedIsRefused) {
  ShardRig rig({});
  rig.Commit(1, {rig.Member(0)});
  ShardMessage seed = rig.SeedMessage(0, 0, SomeValues(100, 1));
  seed.payload.body.size -= 1;
  EXPECT_THAT(Lines(rig.shard().Apply(seed)), ElementsAre("refuse r0 malformed"));
  EXPECT_THAT(Lines(rig.Pull(0, 0, 0)), ElementsAre("noted r0 b0 v0"));
}

TEST(ShardOptions, ThatMakeNoSenseAreRefused) {
  BufferPool pool(1 << 20);
  ShardOptions options;
  options.training.optimizer.name = "adamq";
  EXPECT_EQ(Shard::Create(options, {}, pool).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ShardMemory, PublishesIntoTheMemoryItIsGiven) {
  BufferPool pool(1 << 20);
  const CodecRegistry codecs = CodecRegistry::Builtin();
  Buffer given;
  ShardOptions options;
  options.seed_codec = *codecs.Find(CodecId::kFp32);
  options.transfers = {
      {.push = *ParseTransfer("fp32"), .publish = *ParseTransfer("fp32")}};
  options.publish_memory = [&](size_t bytes) {
    given = Buffer::Allocate(bytes);
    return given.owner();
  };
  const BlockRange range = {.tensor = 0, .first_element = 0, .elements = 10};
  const uint64_t elements = 10;
  options.tensors = {{.shape = TensorShape({&elements, 1})}};
  const auto shard = *Shard::Create(options, {{0, range}}, pool);
  shard->Apply(ShardCommit{1, {{0, 0, 0, 0}}});
  MessageHeader header;
  header.epoch = 1;
  header.kind = static_cast<uint16_t>(MessageKind::kSeed);
  std::vector<float> values = SomeValues(10, 1);
  const Buffer payload = Gather(EncodeBlock(*options.seed_codec, {range, 0, 1}, values,
                                            Checksum::kHeaderOnly, pool));
  shard->Apply(ShardMessage{header, Slice::Of(payload)});
  header.kind = static_cast<uint16_t>(MessageKind::kPull);
  const auto outputs = shard->Apply(ShardMessage{header, {}});
  EXPECT_EQ(std::get<ShardReply>(outputs[0]).payload[0].data, given.data());
}

}  // namespace
}  // namespace syncline
