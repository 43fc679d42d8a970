#include "worker/client/codec_chooser.h"

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "comm/codec/fp32/fp32.h"
#include "comm/compression/memory/gradient_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/push_encoder.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kElements = 1 << 20;

ExchangeOptions Options(std::string_view push) {
  ExchangeOptions options;
  const Transfer fp32 = *ParseTransfer("fp32");
  options.transfers = {{.push = *ParseTransfer(push), .publish = fp32}, {fp32, fp32}};
  return options;
}

// Returns the measurement of a mebibyte on a wire of this speed.
CodecChooser::Work Wire(double bytes_per_second) {
  return {.bytes = 1 << 20, .time = absl::Seconds((1 << 20) / bytes_per_second)};
}

class Choosing : public ::testing::Test {
 protected:
  explicit Choosing(ReceiverPlace receiver = ReceiverPlace::kNetwork) {
    options_ = Options("auto");
    options_.receiver = receiver;
    chooser_.emplace(options_, std::vector<uint64_t>{kElements, 100});
  }

  ExchangeOptions options_;
  std::optional<CodecChooser> chooser_;
};

TEST_F(Choosing, IsForTensorsThatLeaveItOpen) {
  EXPECT_TRUE(chooser_->Chooses(0));
  EXPECT_FALSE(chooser_->Chooses(1));
  EXPECT_EQ(chooser_->TransferAt(1, 0).codec, options_.transfers[1].push.codec);
  chooser_->Encoded(1, {.values = 100, .bytes = 400});
}

TEST_F(Choosing, TakesFewBytesWhereTheWireIsSlow) {
  chooser_->Sent(Wire(12e6));  // 100 Mbit/s
  const Transfer& transfer = chooser_->TransferAt(0, 0);
  EXPECT_EQ(transfer.codec->id(), CodecId::kSparse);
  EXPECT_THAT(chooser_->Reason(), HasSubstr("topk: wire 12 MB/s"));
}

TEST_F(Choosing, StaysDenseWhereItIsFast) {
  chooser_->Sent(Wire(40e9));
  EXPECT_EQ(chooser_->TransferAt(0, 0).codec->id(), CodecId::kBf16);
}

class ChoosingOnOneHost : public Choosing {
 protected:
  ChoosingOnOneHost() : Choosing(ReceiverPlace::kThisHost) {}
};

TEST_F(ChoosingOnOneHost, NeverCompresses) {
  chooser_->Sent(Wire(12e6));
  EXPECT_EQ(chooser_->TransferAt(0, 0).codec->id(), CodecId::kBf16);
  EXPECT_THAT(chooser_->Reason(), HasSubstr("this host"));
}

TEST(ChoosingByStatistics, LooksAtAGradientNowAndThen) {
  const ExchangeOptions options = Options("auto:statistics=1");
  CodecChooser chooser(options, std::vector<uint64_t>{kElements, 100});
  EXPECT_TRUE(chooser.WantsToSee(0, 64));
  EXPECT_FALSE(chooser.WantsToSee(0, 65));
  EXPECT_FALSE(chooser.WantsToSee(1, 64));
  std::vector<float> rows(kTileElements);
  rows[7] = 1;
  chooser.Saw(0, rows);
  chooser.Sent(Wire(12e6));
  EXPECT_EQ(chooser.TransferAt(0, 0).codec->id(), CodecId::kSparse);
  EXPECT_THAT(chooser.Reason(), HasSubstr("blocks"));
}

// A clock that advances a millisecond at each reading.
class SlowClock final : public Clock {
 public:
  absl::Duration Now() const override { return now_ += absl::Milliseconds(1); }

 private:
  mutable absl::Duration now_ = absl::ZeroDuration();
};

// The codec changes several times, and no part of the gradients is lost.
TEST(ChoosingEncoder, KeepsWhatOneCodecLosesForTheNext) {
  const SlowClock clock;
  BufferPool pool(64 << 20);
  const std::unique_ptr<Codec> fp32 = MakeFp32Codec();
  ExchangeOptions options = Options("auto");
  options.seed_codec = fp32.get();
  options.clock = &clock;
  PushEncoder encoder(options, std::vector<uint64_t>{kElements, 100}, pool);
  EXPECT_THAT(encoder.choice(), IsEmpty());
  const uint32_t elements = 2 * kTileElements;
  std::vector<double> given(elements), sent(elements);
  std::set<CodecId> used;
  std::vector<float> gradient(kElements);
  for (uint64_t step = 0; step < 300; ++step) {
    for (uint32_t i = 0; i < elements; ++i) {
      gradient[i] = static_cast<float>((i * 7 + step * 13) % 101) - 50;
      given[i] += gradient[i];
    }
    if (step == 100) encoder.Sent(1 << 20, absl::Seconds(1));
    const BlockLabel label = {.range = {.elements = elements}, .step = step};
    const Buffer bytes = Gather(
        encoder.Encode({.block = 0, .label = label, .gradient = gradient, .units = {}}));
    const auto view =
        ParseBlock(bytes.view(), label, options.transfers[0].push.Accepted());
    ASSERT_TRUE(view.ok()) << view.status();
    for (const TileView& tile : view->tiles) {
      used.insert(tile.codec->id());
      std::vector<float> values(tile.elements);
      ASSERT_TRUE(tile.codec->Decode(tile.bytes, values).ok());
      for (uint32_t i = 0; i < tile.elements; ++i) {
        sent[tile.first_element + i] += values[i];
      }
    }
    encoder.Forget(0);
  }
  EXPECT_GE(used.size(), 2u);
  EXPECT_THAT(encoder.choice(), HasSubstr("wire"));
  const std::span<const float> left = encoder.Settle(0, {});
  for (uint32_t i = 0; i < elements; ++i) ASSERT_NEAR(sent[i] + left[i], given[i], 0.05);
}

TEST(TensorScope, SendsTheLargestOfTheTensorWhereverTheyAre) {
  BufferPool pool(64 << 20);
  const std::unique_ptr<Codec> fp32 = MakeFp32Codec();
  ExchangeOptions options = Options("topk:ratio=0.01,scope=tensor");
  options.seed_codec = fp32.get();
  const uint64_t elements = 4 * uint64_t{kTileElements};
  PushEncoder encoder(options, std::vector<uint64_t>{elements, 100}, pool);
  std::vector<float> gradient(elements);
  for (uint64_t i = 0; i < elements; ++i) {
    const bool is_large = i >= 3 * uint64_t{kTileElements};  // the last tile
    gradient[i] = static_cast<float>((i * 2654435761u) % 1000 + 1) * (is_large ? 100 : 1);
  }
  const auto sent_of = [&](uint32_t tile, uint64_t step) {
    const BlockLabel label = {.range = {.first_element = tile * uint64_t{kTileElements},
                                        .elements = kTileElements},
                              .step = step};
    const Buffer bytes = Gather(encoder.Encode(
        {.block = tile, .label = label, .gradient = gradient, .units = {}}));
    const auto view =
        ParseBlock(bytes.view(), label, options.transfers[0].push.Accepted());
    EXPECT_TRUE(view.ok()) << view.status();
    encoder.Forget(tile);
    return view->tiles[0].codec->Nonzeros(view->tiles[0].bytes, kTileElements);
  };
  EXPECT_EQ(sent_of(0, 0) + sent_of(1, 0) + sent_of(2, 0), 0u);
  const uint32_t sent = sent_of(3, 0);
  EXPECT_GE(sent, elements / 200);
  EXPECT_LE(sent, elements / 100);
}

}  // namespace
}  // namespace syncline
