// The exchange against a hand-made shard: what it sends, repeats, lands and refuses to
// believe.
#include "worker/client/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "comm/base/crc32c.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kRetry = absl::Seconds(1);

// Two tensors on one shard: block 0 (4 elements) and block 1 (2 elements).
class ExchangeTest : public ::testing::Test {
 protected:
  ExchangeTest() { Make({}); }

  void Make(ExchangeOptions options) {
    options.job = 5;
    options.rank = 1;
    options.incarnation = 2;
    options.session_key = 99;
    options.epoch = 3;
    options.shards = 1;
    options.shard_of_block = {0, 0};
    const Transfer fp32 = *ParseTransfer("fp32");
    if (options.transfers.empty()) options.transfers.assign(2, {fp32, fp32});
    options.seed_codec = *codecs_.FindByName("fp32");
    options.retry = kRetry;
    options_ = options;
    exchange_ = std::make_unique<Exchange>(
        options, std::vector<std::span<float>>{first_, second_}, pool_);
  }

  // What the exchange gave out, sorted by kind of output.
  struct Seen {
    std::vector<ExchangeSend> sends;
    std::vector<uint32_t> ready;
    std::vector<absl::Status> failures;
    std::vector<ExchangeAveraged> averages;

    std::vector<std::pair<MessageKind, uint32_t>> Messages() const {
      std::vector<std::pair<MessageKind, uint32_t>> messages;
      for (const auto& send : sends) {
        messages.push_back(
            {static_cast<MessageKind>(send.header.kind), send.header.block});
      }
      return messages;
    }
  };

  Seen See(ExchangeOutputs outputs) {
    Seen seen;
    for (ExchangeOutput& output : outputs) {
      if (auto* send = std::get_if<ExchangeSend>(&output))
        seen.sends.push_back(std::move(*send));
      if (auto* ready = std::get_if<ExchangeReady>(&output))
        seen.ready.push_back(ready->tensor);
      if (auto* failed = std::get_if<ExchangeFailed>(&output))
        seen.failures.push_back(failed->status);
      if (auto* averaged = std::get_if<ExchangeAveraged>(&output))
        seen.averages.push_back(std::move(*averaged));
    }
    return seen;
  }

  // A message of the shard to this worker.
  MessageHeader From(MessageKind kind, uint32_t block, uint64_t step,
                     uint64_t epoch = 3) {
    MessageHeader header;
    header.kind = static_cast<uint16_t>(kind);
    header.job = 5;
    header.rank = 1;
    header.incarnation = 2;
    header.session_key = 99;
    header.block = block;
    header.step = step;
    header.epoch = epoch;
    return header;
  }

  Seen Answer(const MessageHeader& header, ByteView payload = {}) {
    return See(exchange_->OnMessage(header, payload, now_));
  }

  Seen Refuse(RefuseCode code, uint32_t block, uint64_t step, uint64_t epoch = 3) {
    MessageHeader header = From(MessageKind::kRefuse, block, step, epoch);
    header.code = static_cast<uint16_t>(code);
    return Answer(header);
  }

  Seen Publish(uint32_t block, uint64_t version, float value) {
    std::vector<float> values(block == 0 ? 4 : 2, value);
    const BlockRange range{block, 0, static_cast<uint32_t>(values.size())};
    const Buffer payload =
        Gather(EncodeBlock(*options_.transfers[block].publish.codec, {range, version, 3},
                           values, Checksum::kHeaderAndPayload, pool_));
    return Answer(From(MessageKind::kPublish, block, version), payload.view());
  }

  // The version before, without a payload.
  Seen PublishUnchanged(uint32_t block, uint64_t version, float loss_scale = 1) {
    MessageHeader header = From(MessageKind::kPublish, block, version);
    header.flags = kFlagUnchanged;
    header.samples = std::bit_cast<uint32_t>(loss_scale);
    return Answer(header);
  }

  Seen SendAverage(uint32_t block, float value) {
    std::vector<float> values(block == 0 ? 4 : 2, value);
    const BlockRange range{block, 0, static_cast<uint32_t>(values.size())};
    const Buffer payload = Gather(EncodeBlock(*options_.seed_codec, {range, 7, 3}, values,
                                              Checksum::kHeaderAndPayload, pool_));
    return Answer(From(MessageKind::kAverage, block, 7), payload.view());
  }

  // Both tensors hold version 0 and may be pushed.
  void ReachStepZero() {
    See(exchange_->Start(now_));
    Publish(0, 0, 1.0f);
    Publish(1, 0, 2.0f);
  }

  CodecRegistry codecs_ = CodecRegistry::Builtin();
  BufferPool pool_{1 << 20};
  ExchangeOptions options_;
  std::vector<float> first_ = std::vector<float>(4, -1.0f);
  std::vector<float> second_ = std::vector<float>(2, -1.0f);
  std::vector<float> gradient_ = {1, 2, 3, 4};
  std::unique_ptr<Exchange> exchange_;
  absl::Duration now_ = absl::ZeroDuration();
};

TEST_F(ExchangeTest, ReceiverAsksForAllBlocksAndIsReadyWhenTheyLanded) {
  EXPECT_THAT(
      See(exchange_->Start(now_)).Messages(),
      ElementsAre(std::pair{MessageKind::kPull, 0u}, std::pair{MessageKind::kPull, 1u}));
  EXPECT_THAT(Publish(0, 0, 7.5f).ready, ElementsAre(0u));
  EXPECT_THAT(first_, ElementsAre(7.5f, 7.5f, 7.5f, 7.5f));
  EXPECT_FALSE(exchange_->IsReady(1));
}

TEST_F(ExchangeTest, SeederSendsItsValuesAndThenTakesThePublishedView) {
  ExchangeOptions options;
  options.role = SeedRole::kSeeder;
  Make(options);
  const Seen started = See(exchange_->Start(now_));
  EXPECT_THAT(started.Messages(), ElementsAre(std::pair{MessageKind::kSeed, 0u},
                                              std::pair{MessageKind::kSeed, 1u}));
  const MessageHeader ack = From(MessageKind::kAck, 0, started.sends[0].header.step);
  EXPECT_THAT(Answer(ack).Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
}

TEST_F(ExchangeTest, SeedAcknowledgementDoesNotPassForOneOfAContribution) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 8, now_));
  Answer(From(MessageKind::kAck, 0, ~uint64_t{0}));
  EXPECT_FALSE(exchange_->AllHeld());
  Answer(From(MessageKind::kAck, 0, 0));
  EXPECT_TRUE(exchange_->AllHeld());
}

TEST_F(ExchangeTest, ContributionCarriesItsNameAndSamples) {
  ReachStepZero();
  const Seen pushed = See(exchange_->Push(0, gradient_, 8, now_));
  ASSERT_EQ(pushed.sends.size(), 1u);
  const MessageHeader& header = pushed.sends[0].header;
  EXPECT_EQ(header.step, 0u);
  EXPECT_EQ(header.samples, 8u);
  EXPECT_EQ(header.epoch, 3u);
  const Buffer bytes = Gather(pushed.sends[0].payload);
  const auto view = ParseBlock(bytes.view(), {{0, 0, 4}, 0, 3}, {options_.seed_codec});
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<float> sent(4);
  ASSERT_TRUE(view->tiles[0].codec->Decode(view->tiles[0].bytes, sent).ok());
  EXPECT_EQ(sent, gradient_);
}

TEST_F(ExchangeTest, TensorIsNotReadyWhileItsGradientIsStillBeingSent) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_THAT(Publish(0, 1, 3.0f).ready, IsEmpty());
  EXPECT_THAT(See(exchange_->SendDone(0)).ready, ElementsAre(0u));
  EXPECT_EQ(exchange_->step(), 0u) << "the other tensor is still at version 0";
}

TEST_F(ExchangeTest, RepeatsWhatIsNotAcknowledgedAndAsksForWhatIsHeld) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  now_ += kRetry;
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 0u}));
  EXPECT_EQ(exchange_->stats().resent_blocks, 1u);
  Answer(From(MessageKind::kAck, 0, 0));
  now_ += kRetry;
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(), IsEmpty());
  now_ += 4 * kRetry;
  const Seen asked = See(exchange_->Tick(now_));
  ASSERT_THAT(asked.Messages(), ElementsAre(std::pair{MessageKind::kPull, 0u}));
  EXPECT_EQ(asked.sends[0].header.step, 1u);
}

TEST_F(ExchangeTest, FrontTensorOvertakesWhenTheWindowIsFull) {
  ExchangeOptions options;
  options.window_bytes = 1;  // one block at a time
  Make(options);
  ReachStepZero();
  std::vector<float> small(2, 1.0f);
  EXPECT_THAT(See(exchange_->Push(1, small, 1, now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 1u}));
  EXPECT_THAT(See(exchange_->Push(0, gradient_, 1, now_)).Messages(), IsEmpty());
  EXPECT_THAT(Answer(From(MessageKind::kAck, 1, 0)).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 0u}));
}

TEST_F(ExchangeTest, AdoptsANewerEpochAndSendsAgain) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  const Seen again = Refuse(RefuseCode::kStaleEpoch, 0, 0, 4);
  ASSERT_THAT(again.Messages(), ElementsAre(std::pair{MessageKind::kPush, 0u}));
  EXPECT_EQ(again.sends[0].header.epoch, 4u);
  // A second refusal of the first message must not send a third.
  EXPECT_THAT(Refuse(RefuseCode::kStaleEpoch, 0, 0, 4).Messages(), IsEmpty());
}

TEST_F(ExchangeTest, WaitsALittleWhenTheShardIsBehind) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_THAT(Refuse(RefuseCode::kFutureEpoch, 0, 0, 2).Messages(), IsEmpty());
  now_ += kRetry / 10;
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 0u}));
}

TEST_F(ExchangeTest, DroppedWorkerFailsWithAborted) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  const Seen refused = Refuse(RefuseCode::kNotMember, 0, 0, 9);
  ASSERT_EQ(refused.failures.size(), 1u);
  EXPECT_TRUE(absl::IsAborted(refused.failures[0]));
  EXPECT_THAT(std::string(refused.failures[0].message()), HasSubstr("epoch 9"));
  EXPECT_THAT(See(exchange_->Tick(now_ + kRetry * 10)).Messages(), IsEmpty());
}

TEST_F(ExchangeTest, RefusedContentFailsAndSaysWhere) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  const Seen refused = Refuse(RefuseCode::kMalformed, 0, 0);
  ASSERT_EQ(refused.failures.size(), 1u);
  EXPECT_THAT(std::string(refused.failures[0].message()),
              HasSubstr("tensor 0 elements [0, 4)"));
}

TEST_F(ExchangeTest, BelievesNoMessageForSomebodyElse) {
  See(exchange_->Start(now_));
  std::vector<float> values(4, 9.0f);
  const Buffer payload =
      Gather(EncodeBlock(*options_.transfers[0].publish.codec, {{0, 0, 4}, 0, 3},
                         values, Checksum::kHeaderAndPayload, pool_));
  for (auto spoil :
       {+[](MessageHeader& h) { h.session_key = 1; },
        +[](MessageHeader& h) { h.rank = 0; },
        +[](MessageHeader& h) { h.incarnation = 1; },
        +[](MessageHeader& h) { h.job = 6; }, +[](MessageHeader& h) { h.block = 2; }}) {
    MessageHeader header = From(MessageKind::kPublish, 0, 0);
    spoil(header);
    EXPECT_THAT(Answer(header, payload.view()).ready, IsEmpty());
  }
  EXPECT_THAT(first_, ElementsAre(-1.0f, -1.0f, -1.0f, -1.0f));
}

TEST_F(ExchangeTest, DamagedViewLeavesTheWeightsAlone) {
  See(exchange_->Start(now_));
  std::vector<float> values(4, 9.0f);
  Buffer payload =
      Gather(EncodeBlock(*options_.transfers[0].publish.codec, {{0, 0, 4}, 0, 3},
                         values, Checksum::kHeaderAndPayload, pool_));
  payload.data()[70] ^= std::byte{1};
  EXPECT_THAT(Answer(From(MessageKind::kPublish, 0, 0), payload.view()).ready, IsEmpty());
  EXPECT_THAT(first_, ElementsAre(-1.0f, -1.0f, -1.0f, -1.0f));
}

TEST_F(ExchangeTest, NewSeederSeedsOnlyWhatItHasNotSeen) {
  See(exchange_->Start(now_));
  Publish(0, 0, 1.0f);
  EXPECT_THAT(See(exchange_->EpochChanged(4, SeedRole::kSeeder, now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kSeed, 1u}));
}

TEST_F(ExchangeTest, LateJoinerBeginsAtItsFirstStep) {
  ExchangeOptions options;
  options.first_step = 40;
  Make(options);
  const Seen started = See(exchange_->Start(now_));
  EXPECT_EQ(started.sends[0].header.step, 40u);
  EXPECT_THAT(Publish(0, 39, 1.0f).ready, IsEmpty());
  EXPECT_THAT(Publish(0, 40, 1.0f).ready, ElementsAre(0u));
  const Seen pushed = See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_EQ(pushed.sends[0].header.step, 40u);
}

TEST_F(ExchangeTest, AnUnchangedVersionKeepsTheWeightsAndEndsTheStep) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  See(exchange_->SendDone(0));
  EXPECT_THAT(PublishUnchanged(0, 2).ready, IsEmpty()) << "a version was missed";
  EXPECT_THAT(PublishUnchanged(0, 1).ready, ElementsAre(0u));
  EXPECT_THAT(first_, ElementsAre(1, 1, 1, 1));
}

TEST_F(ExchangeTest, AJoinerIsNotContentWithAnUnchangedVersion) {
  See(exchange_->Start(now_));
  EXPECT_THAT(PublishUnchanged(0, 1).ready, IsEmpty());
}

TEST_F(ExchangeTest, KnowsTheLossScaleOfTheLatestVersion) {
  ReachStepZero();
  EXPECT_EQ(exchange_->loss_scale(), 1);
  See(exchange_->Push(0, gradient_, 1, now_));
  See(exchange_->Push(1, std::span<const float>(gradient_).first(2), 1, now_));
  PublishUnchanged(0, 1, 512);
  EXPECT_EQ(exchange_->loss_scale(), 512);
  PublishUnchanged(1, 1, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(exchange_->loss_scale(), 512) << "nonsense is not believed";
}

TEST_F(ExchangeTest, AFrozenTensorIsReceivedOnceAndDoesNotHoldTheStep) {
  ExchangeOptions options;
  options.first_step = 5;
  options.frozen = {true, false};
  Make(options);
  const Seen start = See(exchange_->Start(now_));
  EXPECT_EQ(start.sends[0].header.step, 0u);
  EXPECT_EQ(start.sends[1].header.step, 5u);
  EXPECT_THAT(Publish(0, 0, 1.0f).ready, ElementsAre(0u));
  Publish(1, 5, 1.0f);
  EXPECT_EQ(exchange_->step(), 5u);
}

TEST_F(ExchangeTest, RepetitionsAreNoProgress) {
  ReachStepZero();
  See(exchange_->Push(0, gradient_, 1, now_));
  const uint64_t before = exchange_->stats().progress_bytes;
  for (int i = 0; i < 3; ++i) {
    now_ += 2 * kRetry;
    EXPECT_FALSE(See(exchange_->Tick(now_)).sends.empty());
  }
  EXPECT_EQ(exchange_->stats().progress_bytes, before);
  Answer(From(MessageKind::kAck, 0, 0));
  EXPECT_GT(exchange_->stats().progress_bytes, before);
}

TEST_F(ExchangeTest, AveragesAreAskedForUntilTheyCome) {
  ReachStepZero();
  EXPECT_THAT(See(exchange_->PullAverage(0, now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPullAverage, 0u}));
  now_ += 2 * kRetry;
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPullAverage, 0u}));
  const Seen seen = SendAverage(0, 0.25f);
  ASSERT_EQ(seen.averages.size(), 1u);
  EXPECT_TRUE(seen.averages[0].status.ok());
  EXPECT_THAT(seen.averages[0].weights, ElementsAre(0.25f, 0.25f, 0.25f, 0.25f));
  EXPECT_THAT(first_, ElementsAre(1, 1, 1, 1)) << "the weights are not touched";
  EXPECT_THAT(SendAverage(0, 0.5f).averages, IsEmpty()) << "a repetition";
}

TEST_F(ExchangeTest, AJobWithoutAveragesSaysSo) {
  ReachStepZero();
  See(exchange_->PullAverage(0, now_));
  const Seen seen = Refuse(RefuseCode::kNoAverage, 0, 0);
  ASSERT_EQ(seen.averages.size(), 1u);
  EXPECT_EQ(seen.averages[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(seen.failures, IsEmpty());
}

// ---- Compressed transfers: tensor 0 travels as int8 with error feedback, both ways ----

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

  // What a push of tensor 0 decodes to.
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
  PublishDelta(1, 0.5f);  // again
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
  first_[2] += 1;  // somebody writes to the weights
  const Seen seen = PublishDelta(1, 0.5f, CrcOf(std::vector<float>(4, 1.5f)));
  EXPECT_THAT(seen.ready, IsEmpty());
  EXPECT_THAT(seen.Messages(), ElementsAre(std::pair(MessageKind::kPull, 0u)));
  EXPECT_EQ(exchange_->stats().diverged_blocks, 1u);
  EXPECT_THAT(PublishDelta(1, 0.5f).ready, IsEmpty()) << "only all of it will do";
  EXPECT_THAT(PublishWhole(1, 1.5f).ready, ElementsAre(0u));
  EXPECT_EQ(first_, std::vector<float>(4, 1.5f));
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
  now_ += kRetry;
  EXPECT_EQ(Pushed(See(exchange_->Tick(now_)), 0), once);
  // And under another epoch.
  See(exchange_->EpochChanged(9, SeedRole::kReceiver, now_));
  now_ += kRetry;
  EXPECT_EQ(Pushed(See(exchange_->Tick(now_)), 0, 9), once);
  PublishDelta(1, 0.0f);
  // What that step lost comes with the next one, once.
  const std::vector<float> zeros(4);
  const std::vector<float> rest = Pushed(See(exchange_->Push(0, zeros, 1, now_)), 1, 9);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(once[i] + rest[i], gradient[i], 1e-4) << i;
  }
  EXPECT_NE(rest, zeros);
}

TEST_F(CompressedExchange, AGradientThatIsNotFiniteArrivesAsSuch) {
  const std::vector<float> bad = {1, std::numeric_limits<float>::infinity(), 2, 3};
  const std::vector<float> sent = Pushed(See(exchange_->Push(0, bad, 1, now_)), 0);
  EXPECT_EQ(sent, bad);
}

TEST_F(ExchangeTest, LandsNothingThatNobodyAskedFor) {
  ReachStepZero();
  Publish(0, 5, 9.0f);
  EXPECT_THAT(first_, ElementsAre(1.0f, 1.0f, 1.0f, 1.0f));
}

}  // namespace
}  // namespace syncline
