// A test fixture: an exchange, and functions that answer like a shard.
#pragma once

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "worker/client/exchange.h"

namespace syncline {

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
    options_ = options;
    exchange_ = std::make_unique<Exchange>(
        options, std::vector<MemoryView>{first_, second_}, pool_);
    exchange_->Connected(0, now_);
  }

  // Outputs of the exchange, sorted by kind.
  struct Seen {
    std::vector<ExchangeSend> sends;
    std::vector<std::shared_ptr<EncodeWork>> encodings;  // not run yet
    std::vector<std::shared_ptr<DecodeWork>> decodings;  // not run yet
    std::vector<uint32_t> ready;
    std::vector<absl::Status> failures;
    std::vector<ExchangeAveraged> averages;
    int parted = 0;

    std::vector<std::pair<MessageKind, uint32_t>> Messages() const {
      std::vector<std::pair<MessageKind, uint32_t>> messages;
      for (const auto& send : sends) {
        messages.push_back(
            {static_cast<MessageKind>(send.header.kind), send.header.block});
      }
      return messages;
    }
  };

  // Sorts the outputs. Encodes and decodes at once, unless the test does that itself
  // (encodes_itself_, decodes_itself_).
  Seen See(ExchangeOutputs outputs) {
    Seen seen;
    for (size_t i = 0; i < outputs.size(); ++i) {
      ExchangeOutput output = std::move(outputs[i]);
      if (auto* encode = std::get_if<ExchangeEncode>(&output)) {
        if (encodes_itself_) {
          seen.encodings.push_back(std::move(encode->work));
          continue;
        }
        ExchangeOutputs more = Encode(*encode->work);
        std::ranges::move(more, std::back_inserter(outputs));
      }
      if (auto* decode = std::get_if<ExchangeDecode>(&output)) {
        if (decodes_itself_) {
          seen.decodings.push_back(std::move(decode->work));
          continue;
        }
        ExchangeOutputs more = Decode(*decode->work);
        std::ranges::move(more, std::back_inserter(outputs));
      }
      if (auto* send = std::get_if<ExchangeSend>(&output))
        seen.sends.push_back(std::move(*send));
      if (auto* ready = std::get_if<ExchangeReady>(&output))
        seen.ready.push_back(ready->tensor);
      if (auto* failed = std::get_if<ExchangeFailed>(&output))
        seen.failures.push_back(failed->status);
      if (auto* averaged = std::get_if<ExchangeAveraged>(&output))
        seen.averages.push_back(std::move(*averaged));
      if (std::holds_alternative<ExchangeParted>(output)) ++seen.parted;
    }
    return seen;
  }

  ExchangeOutputs Encode(EncodeWork& work) {
    work.Run(workspace_);
    return exchange_->Encoded(work, now_);
  }

  ExchangeOutputs Decode(DecodeWork& work) {
    work.Run(workspace_);
    return exchange_->Decoded(work, now_);
  }

  // Loses the connection, and lets the shard welcome the worker on a new one.
  Seen Reconnect() {
    exchange_->Disconnected(0);
    return See(exchange_->Connected(0, now_));
  }

  // Returns the header of a message from the shard to this worker.
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
    return See(exchange_->OnMessage(header, Slice::Borrowed(payload), now_));
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

  // Publishes the previous weights as a new version, without a payload.
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

  // Sends an array of optimizer state that is the result of 12 updates.
  Seen SendState(uint32_t block, uint32_t array, float value, uint64_t step = 0) {
    std::vector<float> values(block == 0 ? 4 : 2, value);
    const BlockRange range{block, 0, static_cast<uint32_t>(values.size())};
    const Buffer payload =
        Gather(EncodeBlock(*options_.seed_codec, {range, step, 3}, values,
                           Checksum::kHeaderAndPayload, pool_));
    MessageHeader header = From(MessageKind::kState, block, step);
    header.samples = array;
    header.shard = 12;
    return Answer(header, payload.view());
  }

  // Starts the exchange, so that both tensors hold version 0 and may be pushed.
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
  CodecWorkspace workspace_;
  bool encodes_itself_ = false;
  bool decodes_itself_ = false;
  absl::Duration now_ = absl::ZeroDuration();
};

}  // namespace syncline
