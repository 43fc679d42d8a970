// Tests that a worker whose own values are the servers' receives no view of them.
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "comm/codec/view_digest.h"
#include "comm/transport/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class HeldView : public ExchangeTest {
 protected:
  void MakeWith(const char* publish, ExchangeOptions options = {}) {
    const Transfer transfer = *ParseTransfer(publish);
    options.seed = 7;
    options.transfers.assign(2, {transfer, transfer});
    Make(options);
  }

  // Returns the digest of the view that a server publishes of these values at version 4,
  // epoch 9.
  uint64_t ServersDigest(uint32_t block, const std::vector<float>& values) {
    const Transfer& publish = options_.transfers[block].publish;
    const BlockLabel label = {.range = {block, 0, static_cast<uint32_t>(values.size())},
                              .step = 4,
                              .epoch = 9,
                              .seed = 7};
    const Codec& codec = publish.compresses() ? *options_.seed_codec : *publish.codec;
    return ViewDigest(
        EncodeBlock(codec, label, values, Checksum::kHeaderAndPayload, pool_),
        label.range.elements);
  }

  Seen SayHeld(uint32_t block, uint64_t version) {
    MessageHeader header = From(MessageKind::kPublish, block, version);
    header.flags = kFlagHeld;
    return Answer(header);
  }
};

TEST_F(HeldView, TheFirstPullSaysWhatTheWorkerHolds) {
  for (const char* codec : {"fp32", "bf16", "onebit:min_elements=0,vectors=1"}) {
    MakeWith(codec);
    const Seen asked = See(exchange_->Start(now_));
    ASSERT_EQ(asked.sends.size(), 2u);
    EXPECT_EQ(asked.sends[0].header.flags, kFlagHeld) << codec;
    EXPECT_EQ(DigestOf(asked.sends[0].header), ServersDigest(0, first_)) << codec;
    EXPECT_EQ(DigestOf(asked.sends[1].header), ServersDigest(1, second_)) << codec;
  }
}

TEST_F(HeldView, AWordLandsItAsTheServersPublishIt) {
  first_ = {1.0f, 1.0f + 0x1p-20f, -3.3f, std::numeric_limits<float>::infinity()};
  const std::vector<float> own = first_;
  MakeWith("bf16");
  See(exchange_->Start(now_));
  EXPECT_THAT(SayHeld(0, 0).ready, ElementsAre(0u));
  std::vector<float> rounded(4);
  const Codec& bf16 = *options_.transfers[0].publish.codec;
  std::vector<std::byte> bytes(bf16.MaxEncodedBytes(4));
  bytes.resize(bf16.Encode(own, {}, {}, bytes));
  ASSERT_TRUE(bf16.Decode(bytes, rounded).ok());
  EXPECT_EQ(first_, rounded);
  EXPECT_NE(first_, own);
  EXPECT_EQ(exchange_->stats().bytes_pulled, 0u);
}

TEST_F(HeldView, ExactViewsStayAsTheyAre) {
  first_ = {1.0f, 1.0f + 0x1p-20f, -3.3f, 0.0f};
  const std::vector<float> own = first_;
  MakeWith("onebit:min_elements=0,vectors=1");
  See(exchange_->Start(now_));
  EXPECT_THAT(SayHeld(0, 0).ready, ElementsAre(0u));
  EXPECT_EQ(first_, own);
}

TEST_F(HeldView, TheSeederNeedNotBeSentItsOwnValues) {
  ExchangeOptions options;
  options.role = SeedRole::kSeeder;
  MakeWith("fp32", options);
  const Seen seeded = See(exchange_->Start(now_));
  const Seen asked = Answer(From(MessageKind::kAck, 0, seeded.sends[0].header.step));
  ASSERT_THAT(asked.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(DigestOf(asked.sends[0].header), ServersDigest(0, first_));
  EXPECT_THAT(SayHeld(0, 0).ready, ElementsAre(0u));
}

TEST_F(HeldView, ItIsAskedForAgainOnTheNextConnection) {
  See(exchange_->Start(now_));
  Publish(1, 0, 2.0f);
  const Seen again = Reconnect();
  ASSERT_THAT(again.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(again.sends[0].header.flags, kFlagHeld);
}

TEST_F(HeldView, AWordIsWorthNothingOnceSomethingLanded) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 8, now_));
  See(exchange_->SendDone(0));
  Answer(From(MessageKind::kAck, 0, 0));
  EXPECT_THAT(SayHeld(0, 1).ready, IsEmpty());
  EXPECT_THAT(first_, Each(1.0f));
  now_ += absl::Seconds(1);
  const Seen anew = See(exchange_->Tick(now_));
  ASSERT_THAT(anew.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(anew.sends[0].header.flags, kFlagResend) << "these values are not its own";
  EXPECT_THAT(Publish(0, 1, 5.0f).ready, ElementsAre(0u));
}

TEST_F(HeldView, AWordWithAPayloadIsNone) {
  See(exchange_->Start(now_));
  MessageHeader header = From(MessageKind::kPublish, 0, 0);
  header.flags = kFlagHeld;
  const std::vector<std::byte> payload(64);
  EXPECT_THAT(Answer(header, payload).ready, IsEmpty());
  EXPECT_THAT(first_, Each(-1.0f));
}

TEST_F(HeldView, WithinAHostNothingIsCompared) {
  MakeWith("bf16", {.receiver = ReceiverPlace::kThisHost});
  for (const ExchangeSend& send : See(exchange_->Start(now_)).sends) {
    EXPECT_EQ(send.header.flags, 0);
  }
}

// The exchange's thread does nothing else while it computes digests, so their number per
// Tick is limited.
TEST_F(HeldView, ALargeModelIsLookedAtPieceByPiece) {
  std::vector<float> large((size_t{1} << 24) + kTilesPerBlock * kTileElements + 1);
  ExchangeOptions options = options_;
  const auto ranges = CutIntoBlocks(std::vector<uint64_t>{large.size()});
  options.shard_of_block.assign(ranges.size(), 0);
  options.transfers.resize(1);
  Exchange exchange(options, {std::span(large)}, pool_);
  const size_t blocks = options.shard_of_block.size();
  See(exchange.Start(now_));
  const size_t first = See(exchange.Connected(0, now_)).sends.size();
  EXPECT_EQ(first, (size_t{1} << 24) / ranges[0].elements);
  EXPECT_EQ(exchange.WhatIsAwaited(0), Exchange::Awaits::kShard);
  EXPECT_EQ(See(exchange.Tick(now_)).sends.size(), blocks - first);
  EXPECT_THAT(See(exchange.Tick(now_)).sends, IsEmpty());
}

}  // namespace
}  // namespace syncline
