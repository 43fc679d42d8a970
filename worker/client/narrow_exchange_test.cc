// Tests of weights in BF16 or FP16 memory. They send and receive the same values as FP32
// memory that is rounded afterwards.
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAreArray;

struct Case {
  DType dtype;
  const char* publish;
};

class NarrowExchange : public ExchangeTest, public ::testing::WithParamInterface<Case> {
 protected:
  // Makes the exchange with weights of this type. The values are the same in FP32 and in
  // the case's type.
  void MakeIn(DType dtype, ExchangeOptions options) {
    const Transfer transfer = *ParseTransfer(GetParam().publish);
    options.seed = 7;
    options.transfers.assign(2, {transfer, transfer});
    first_ = {1.5f, -2, 0.25f, 3};
    second_ = {-4, 0.75f};
    Make(options);
    dtype_ = dtype;
    Narrow(first_, {.data = narrow_first_.data(), .dtype = GetParam().dtype});
    Narrow(second_, {.data = narrow_second_.data(), .dtype = GetParam().dtype});
    if (dtype == DType::kF32) return;
    exchange_ = std::make_unique<Exchange>(
        options_,
        std::vector<MemoryView>{
            {{.data = narrow_first_.data(), .dtype = dtype}, narrow_first_.size()},
            {{.data = narrow_second_.data(), .dtype = dtype}, narrow_second_.size()}},
        pool_);
    See(exchange_->Connected(0, now_));
  }
  // Returns the first tensor, rounded to the case's type.
  std::vector<float> Held() {
    if (dtype_ == DType::kF32) {
      Narrow(first_, {.data = narrow_first_.data(), .dtype = GetParam().dtype});
    }
    std::vector<float> held(narrow_first_.size());
    Widen({.data = narrow_first_.data(), .dtype = GetParam().dtype}, held);
    return held;
  }
  static std::vector<std::byte> BytesOf(const Seen& seen) {
    std::vector<std::byte> all;
    for (const ExchangeSend& send : seen.sends) {
      const Buffer payload = Gather(send.payload);
      all.insert(all.end(), payload.data(), payload.data() + payload.size());
      const auto header = std::as_bytes(std::span(&send.header, 1));
      all.insert(all.end(), header.begin(), header.end());
    }
    return all;
  }
  Seen Publish4(uint64_t version, const std::vector<float>& values) {
    const Buffer payload =
        Gather(EncodeBlock(*options_.transfers[0].publish.codec, {{0, 0, 4}, version, 3},
                           values, Checksum::kHeaderAndPayload, pool_));
    return Answer(From(MessageKind::kPublish, 0, version), payload.view());
  }

  DType dtype_ = DType::kF32;
  std::vector<uint16_t> narrow_first_ = std::vector<uint16_t>(4);
  std::vector<uint16_t> narrow_second_ = std::vector<uint16_t>(2);
};

INSTANTIATE_TEST_SUITE_P(
    Types, NarrowExchange,
    ::testing::Values(Case{DType::kBf16, "bf16"}, Case{DType::kBf16, "fp16"},
                      Case{DType::kBf16, "fp32"}, Case{DType::kBf16, "bf16-stochastic"},
                      Case{DType::kF16, "fp16"}, Case{DType::kF16, "bf16"},
                      Case{DType::kF16, "fp32"}));

TEST_P(NarrowExchange, SeedsWhatFp32Would) {
  MakeIn(DType::kF32, {.role = SeedRole::kSeeder});
  const auto expected = BytesOf(See(exchange_->Start(now_)));
  EXPECT_FALSE(expected.empty());
  MakeIn(GetParam().dtype, {.role = SeedRole::kSeeder});
  EXPECT_EQ(BytesOf(See(exchange_->Start(now_))), expected);
}

TEST_P(NarrowExchange, SaysWhatItHoldsAsFp32Would) {
  MakeIn(DType::kF32, {});
  const auto expected = BytesOf(See(exchange_->Start(now_)));
  MakeIn(GetParam().dtype, {});
  EXPECT_EQ(BytesOf(See(exchange_->Start(now_))), expected);
}

TEST_P(NarrowExchange, WhatItHoldsIsRoundedAsFp32Would) {
  std::vector<std::vector<float>> held;
  for (const DType dtype : {DType::kF32, GetParam().dtype}) {
    MakeIn(dtype, {});
    See(exchange_->Start(now_));
    MessageHeader header = From(MessageKind::kPublish, 0, 0);
    header.flags = kFlagHeld;
    Answer(header);
    EXPECT_TRUE(exchange_->IsReady(0));
    held.push_back(Held());
  }
  EXPECT_EQ(held[0], held[1]);
}

TEST_P(NarrowExchange, ViewsLandAsTheyWouldInFp32) {
  const std::vector<float> values = {0.1f, -1e-3f, 77.7f, 1.0f / 3};
  std::vector<std::vector<float>> held;
  for (const DType dtype : {DType::kF32, GetParam().dtype}) {
    MakeIn(dtype, {});
    See(exchange_->Start(now_));
    Publish4(0, {0, 0, 0, 0});
    EXPECT_THAT(Held(), ElementsAreArray({0, 0, 0, 0}));
    ASSERT_TRUE(exchange_->IsReady(0));
    for (const ExchangeSend& send : See(exchange_->Push(0, gradient_, 1, now_)).sends) {
      if (send.borrows_gradient) exchange_->SendDone(send.header.block);
    }
    Publish4(1, values);
    EXPECT_TRUE(exchange_->IsReady(0));
    held.push_back(Held());
  }
  EXPECT_EQ(held[0], held[1]);
  EXPECT_NE(held[1][0], 0);
}

}  // namespace
}  // namespace syncline
