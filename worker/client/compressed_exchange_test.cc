// Tests of compressed transfers: tensor 0 is sent as int8 with error feedback, both ways.
#include <limits>
#include <optional>
#include <vector>

#include "comm/base/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::IsEmpty;

class CompressedExchange : public ExchangeTest {
 protected:
  CompressedExchange() {
    const Transfer int8 = *ParseTransfer("int8:block_log2=8,min_elements=0,vectors=1");
    const Transfer fp32 = *ParseTransfer("fp32");
    Make({.transfers = {{.push = int8, .publish = int8}, {fp32, fp32}}});
    See(exchange_->Start(now_));
    PublishWhole(0, 1.0f);
    Publish(1, 0, 2.0f);
  }

  Seen PublishTiles(const Codec& codec, uint64_t version, float value,
                    std::optional<uint32_t> crc = std::nullopt) {
    const std::vector<float> values(4, value);
    const BlockLabel label = {.range = {0, 0, 4}, .step = version, .epoch = 3};
    BlockWriter writer(label, Checksum::kHeaderAndPayload,
                       Buffer::Allocate(MaxBlockBytes(codec, 4)).owner());
    const MutableByteView room = writer.NextTile(codec);
    writer.EndTile(codec.Encode(values, {}, {}, room), crc);
    const Buffer payload = Gather(writer.Finish());
    return Answer(From(MessageKind::kPublish, 0, version), payload.view());
  }
  Seen PublishWhole(uint64_t version, float value) {
    return PublishTiles(*options_.seed_codec, version, value);
  }
  Seen PublishDelta(uint64_t version, float value,
                    std::optional<uint32_t> crc = std::nullopt) {
    return PublishTiles(*options_.transfers[0].publish.codec, version, value, crc);
  }

  // Returns the values that a push of tensor 0 decodes to.
  std::vector<float> Pushed(const Seen& seen, uint64_t step, uint64_t epoch = 3) {
    std::vector<float> values(4);
    EXPECT_EQ(seen.sends.size(), 1u);
    const Buffer bytes = Gather(seen.sends.at(0).payload);
    const auto view = ParseBlock(bytes.view(), {{0, 0, 4}, step, epoch},
                                 options_.transfers[0].push.Accepted());
    EXPECT_TRUE(view.ok()) << view.status();
    EXPECT_TRUE(view->tiles[0].codec->Decode(view->tiles[0].bytes, values).ok());
    return values;
  }

  static uint32_t CrcOf(const std::vector<float>& values) {
    return Crc32c(std::as_bytes(std::span(values)));
  }
};

TEST_F(CompressedExchange, AddsDeltasToTheViewItHolds) {
  EXPECT_EQ(first_, std::vector<float>(4, 1.0f));
  See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_THAT(PublishDelta(1, 0.5f).ready, ElementsAre(0u));
  EXPECT_THAT(first_, Each(FloatNear(1.5f, 1e-6)));
  See(exchange_->Push(0, gradient_, 1, now_));
  PublishDelta(1, 0.5f);  // a repetition
  EXPECT_THAT(first_, Each(FloatNear(1.5f, 1e-6)));
}

TEST_F(CompressedExchange, TakesNoDeltaToWhatItDoesNotHold) {
  See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_THAT(PublishDelta(2, 0.5f).ready, IsEmpty());
  EXPECT_EQ(first_, std::vector<float>(4, 1.0f));
  EXPECT_THAT(PublishWhole(2, 7.0f).ready, ElementsAre(0u));
  EXPECT_EQ(first_, std::vector<float>(4, 7.0f));
}

TEST_F(CompressedExchange, AViewThatDivergedIsTakenAnew) {
  See(exchange_->Push(0, gradient_, 1, now_));
  Answer(From(MessageKind::kAck, 0, 0));
  first_[2] += 1;  // the program writes to the weights
  const Seen seen = PublishDelta(1, 0.5f, CrcOf(std::vector<float>(4, 1.5f)));
  EXPECT_THAT(seen.ready, IsEmpty());
  EXPECT_THAT(seen.Messages(), ElementsAre(std::pair(MessageKind::kPull, 0u)));
  EXPECT_EQ(seen.sends.at(0).header.flags, kFlagResend);
  EXPECT_EQ(exchange_->stats().diverged_blocks, 1u);
  EXPECT_THAT(PublishDelta(1, 0.5f).ready, IsEmpty()) << "only all of it will do";
  EXPECT_THAT(PublishWhole(1, 1.5f).ready, ElementsAre(0u));
  EXPECT_EQ(first_, std::vector<float>(4, 1.5f));
}

TEST_F(CompressedExchange, AViewThatCannotBeUsedIsAskedForAnewALittleLater) {
  See(exchange_->Push(0, gradient_, 1, now_));
  Answer(From(MessageKind::kAck, 0, 0));
  Answer(From(MessageKind::kPublish, 0, 1));  // without a payload
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(), IsEmpty());
  now_ += absl::Milliseconds(10);
  const Seen seen = See(exchange_->Tick(now_));
  ASSERT_THAT(seen.Messages(), ElementsAre(std::pair(MessageKind::kPull, 0u)));
  EXPECT_EQ(seen.sends[0].header.flags, kFlagResend);
  EXPECT_THAT(PublishWhole(1, 1.5f).ready, ElementsAre(0u));
}

TEST_F(CompressedExchange, AViewOfTheRightBitsIsKept) {
  See(exchange_->Push(0, gradient_, 1, now_));
  PublishDelta(1, 0.0f, CrcOf(std::vector<float>(4, 1.0f)));
  EXPECT_EQ(exchange_->stats().diverged_blocks, 0u);
  EXPECT_TRUE(exchange_->IsReady(0));
}

TEST_F(CompressedExchange, RepetitionsSendTheSameAndLoseNothingTwice) {
  const std::vector<float> gradient = {1.0f, 0.3333f, -0.7777f, 0.01f};
  const std::vector<float> once = Pushed(See(exchange_->Push(0, gradient, 1, now_)), 0);
  EXPECT_EQ(Pushed(Reconnect(), 0), once);
  // The bytes are also the same in another epoch.
  See(exchange_->EpochChanged(9, SeedRole::kReceiver, now_));
  EXPECT_EQ(Pushed(Reconnect(), 0, 9), once);
  PublishDelta(1, 0.0f);
  // The next step sends what that step lost, once.
  const std::vector<float> zeros(4);
  const std::vector<float> rest = Pushed(See(exchange_->Push(0, zeros, 1, now_)), 1, 9);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(once[i] + rest[i], gradient[i], 1e-4) << i;
  }
  EXPECT_NE(rest, zeros);
}

TEST_F(CompressedExchange, TheFirstStepsMayTravelDensely) {
  const Transfer int8 =
      *ParseTransfer("int8:block_log2=8,min_elements=0,vectors=1,dense_steps=1");
  const Transfer fp32 = *ParseTransfer("fp32");
  Make({.transfers = {{.push = int8, .publish = int8}, {fp32, fp32}}});
  See(exchange_->Start(now_));
  PublishWhole(0, 1.0f);
  const std::vector<float> gradient = {1.0f, 0.25f, 0.0f, 100.0f};
  EXPECT_EQ(Pushed(See(exchange_->Push(0, gradient, 1, now_)), 0), gradient);
  PublishWhole(1, 2.0f);
  EXPECT_NE(Pushed(See(exchange_->Push(0, gradient, 1, now_)), 1), gradient);
}

TEST_F(CompressedExchange, AGradientThatIsNotFiniteArrivesAsSuch) {
  const std::vector<float> bad = {1, std::numeric_limits<float>::infinity(), 2, 3};
  const std::vector<float> sent = Pushed(See(exchange_->Push(0, bad, 1, now_)), 0);
  EXPECT_EQ(sent, bad);
}

}  // namespace
}  // namespace syncline
