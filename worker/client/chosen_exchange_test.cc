// Tests of push_codec=auto in the exchange: the time until acknowledgements arrive
// decides the codec.
#include <algorithm>
#include <iterator>
#include <memory>
#include <variant>
#include <vector>

#include "comm/base/env.h"
#include "comm/codec/fp32/fp32.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHalf = 2 * kTileElements;
constexpr uint32_t kElements = 2 * kHalf;  // 512 KiB in BF16

// One worker with one tensor of two blocks, and a server whose answers take a given time.
class ChosenExchange : public ::testing::Test {
 protected:
  void Start(ReceiverPlace receiver) {
    options_.transfers = {
        {.push = *ParseTransfer("auto:vectors=1"), .publish = *ParseTransfer("fp32")}};
    options_.shards = 1;
    options_.shard_of_block = {0, 0};
    options_.seed_codec = fp32_.get();
    options_.receiver = receiver;
    options_.clock = &clock_;
    exchange_ =
        std::make_unique<Exchange>(options_, std::vector<MemoryView>{weights_}, pool_);
    exchange_->Connected(0, now_);
    exchange_->Start(now_);
    for (const uint32_t block : {0u, 1u}) Publish(block, 0);
    ASSERT_TRUE(exchange_->IsReady(0));
  }

  // Pushes a step whose acknowledgements come after `answer`. Returns the bytes that were
  // sent.
  size_t Step(uint64_t step, absl::Duration answer) {
    size_t bytes = 0;
    ExchangeOutputs outputs = exchange_->Push(0, gradient_, 1, now_);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const ExchangeOutput output = outputs[i];
      if (const auto* encode = std::get_if<ExchangeEncode>(&output)) {
        encode->work->Run(workspace_);
        std::ranges::move(exchange_->Encoded(*encode->work, now_),
                          std::back_inserter(outputs));
      }
      const auto* send = std::get_if<ExchangeSend>(&output);
      if (send != nullptr) bytes += PayloadBytes(send->payload);
    }
    now_ += answer;
    for (const uint32_t block : {0u, 1u}) {
      exchange_->OnMessage(Header(MessageKind::kAck, block, step), {}, now_);
    }
    for (const uint32_t block : {0u, 1u}) Publish(block, step + 1);
    EXPECT_TRUE(exchange_->IsReady(0));
    return bytes;
  }

  static MessageHeader Header(MessageKind kind, uint32_t block, uint64_t step) {
    MessageHeader header;
    header.kind = static_cast<uint16_t>(kind);
    header.block = block;
    header.step = step;
    return header;
  }
  void Publish(uint32_t block, uint64_t version) {
    const BlockRange range = {.first_element = block * uint64_t{kHalf},
                              .elements = kHalf};
    const std::vector<float> values(kHalf);
    const Buffer payload = Gather(
        EncodeBlock(*fp32_, {range, version, 0}, values, Checksum::kHeaderOnly, pool_));
    for (const ExchangeOutput& output : exchange_->OnMessage(
             Header(MessageKind::kPublish, block, version), Slice::Of(payload), now_)) {
      const auto* decode = std::get_if<ExchangeDecode>(&output);
      if (decode == nullptr) continue;
      decode->work->Run(workspace_);
      exchange_->Decoded(*decode->work, now_);
    }
  }

  const std::unique_ptr<Codec> fp32_ = MakeFp32Codec();
  const SteadyClock clock_;
  BufferPool pool_{64 << 20};
  ExchangeOptions options_;
  std::vector<float> weights_ = std::vector<float>(kElements);
  std::vector<float> gradient_ = std::vector<float>(kElements, 0.5f);
  std::unique_ptr<Exchange> exchange_;
  CodecWorkspace workspace_;
  absl::Duration now_ = absl::ZeroDuration();
};

TEST_F(ChosenExchange, CompressesOnceItKnowsThatTheWireIsSlow) {
  Start(ReceiverPlace::kNetwork);
  const size_t dense = Step(0, absl::Minutes(10));
  EXPECT_GE(dense, 2 * kElements);
  EXPECT_THAT(exchange_->codec_choice(), HasSubstr("not measured yet"));
  EXPECT_LT(Step(1, absl::Minutes(10)), dense / 20);
  EXPECT_THAT(exchange_->codec_choice(), HasSubstr("topk: wire"));
}

TEST_F(ChosenExchange, StaysDenseOnOneHostHoweverLongItTakes) {
  Start(ReceiverPlace::kThisHost);
  const size_t dense = Step(0, absl::Minutes(10));
  EXPECT_EQ(Step(1, absl::Minutes(10)), dense);
  EXPECT_THAT(exchange_->codec_choice(), HasSubstr("this host"));
}

}  // namespace
}  // namespace syncline
