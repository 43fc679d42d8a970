#include "comm/codec/sparse/sparse.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "comm/base/limits.h"
#include "comm/codec/bf16/bf16.h"
#include "comm/codec/fp32/fp32.h"
#include "comm/codec/lossy_codec_contract.h"
#include "comm/codec/sparse/index_coder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

using MakeValues = std::unique_ptr<Codec> (*)();

std::unique_ptr<Codec> Make(const SelectorSpec& spec, MakeValues values = MakeFp32Codec) {
  return *MakeSparseCodec({.selector = spec, .values = values()});
}

LossyCodecCase Case(std::string name, const SelectorSpec& spec,
                    MakeValues values = MakeFp32Codec) {
  return {.name = std::move(name), .make = [=] { return Make(spec, values); }};
}

constexpr SelectorSpec kUnbiased = {
    .kind = SelectorKind::kRandomK, .ratio = 0.25, .scale = RandomKScale::kUnbiased};

constexpr SelectorSpec kUnbiasedWarmup = {.kind = SelectorKind::kRandomK,
                                          .ratio = 0.25,
                                          .warmup = {.steps = 40, .ratio = 0.9},
                                          .scale = RandomKScale::kUnbiased};

// Unbiased values draw random numbers, which the suite expects to see. Biased ones must
// keep the largest value finite, but bf16 rounds it to infinity.
INSTANTIATE_TEST_SUITE_P(
    Sparse, LossyCodecContract,
    ::testing::Values(
        Case("TopK", {.ratio = 0.05}), Case("TopKOfOne", {.ratio = 1e-6}),
        Case("TopKOfAll", {.ratio = 1}),
        Case("TopKOfChunks", {.ratio = 0.05, .chunk_log2 = 8}),
        Case("TopKOfATensor", {.ratio = 0.05, .scope = SelectorScope::kTensor}),
        Case("TopKWarmingUp", {.ratio = 0.05, .warmup = {.steps = 40}}),
        Case("RandomKWarmingUp", kUnbiasedWarmup, MakeStochasticBf16Codec),
        Case("TopKStochastic", {.ratio = 0.05}, MakeStochasticBf16Codec),
        Case("TopKSampled", {.kind = SelectorKind::kTopKSampled, .ratio = 0.05}),
        Case("TopKReuse", {.kind = SelectorKind::kTopKReuse, .ratio = 0.05}),
        Case("RandomK", {.kind = SelectorKind::kRandomK, .ratio = 0.1}),
        Case("RandomKUnbiased", kUnbiased, MakeStochasticBf16Codec),
        Case("Proportional", {.kind = SelectorKind::kProportional, .ratio = 0.05}),
        Case("ProportionalStochastic",
             {.kind = SelectorKind::kProportional, .ratio = 0.25},
             MakeStochasticBf16Codec),
        Case("ProportionalOfAll", {.kind = SelectorKind::kProportional, .ratio = 1},
             MakeStochasticBf16Codec),
        Case("Threshold", {.kind = SelectorKind::kThreshold, .threshold = 0.5f}),
        Case("ThresholdZero", {.kind = SelectorKind::kThreshold}),
        Case("Blocks", {.kind = SelectorKind::kBlocks}, MakeStochasticBf16Codec)),
    LossyCodecCaseName);

Floats Gaussian(uint32_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(n);
  for (float& value : values) value = normal(random);
  return values;
}

Bytes Encode(const Codec& codec, const Floats& values, std::span<float> residual = {},
             const EncodeContext& context = {}) {
  Bytes bytes(codec.MaxEncodedBytes(static_cast<uint32_t>(values.size())));
  bytes.resize(codec.Encode(values, residual, context, bytes));
  return bytes;
}

TEST(SparseCodec, SendsTheValuesAndKeepsTheRest) {
  const auto codec = Make({.ratio = 0.01});
  const Floats values = Gaussian(65536);
  Floats residual(values.size());
  const Bytes bytes = Encode(*codec, values, residual);
  Floats decoded(values.size());
  ASSERT_TRUE(codec->Decode(bytes, decoded).ok());
  uint32_t sent = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE((decoded[i] == values[i] && residual[i] == 0) ||
                (decoded[i] == 0 && residual[i] == values[i]));
    sent += decoded[i] != 0 ? 1 : 0;
  }
  EXPECT_EQ(sent, 655u);
  EXPECT_EQ(codec->Nonzeros(bytes, 65536), 655u);
}

TEST(SparseCodec, WritesTheDocumentedBytes) {
  const auto codec = Make({.ratio = 0.5});
  const Bytes bytes = Encode(*codec, {0, 2, 0, -1});
  const Bytes want = {std::byte{2},      std::byte{0},
                      std::byte{0},      std::byte{0},  // nonzeros
                      std::byte{1},      std::byte{0},  // fp32
                      std::byte{2},      std::byte{0},  // bitmap
                      std::byte{1},      std::byte{0},
                      std::byte{0},      std::byte{0},  // bytes of the indices
                      std::byte{0b1010},                //
                      std::byte{0},      std::byte{0},
                      std::byte{0},      std::byte{0x40},  // 2
                      std::byte{0},      std::byte{0},
                      std::byte{0x80},   std::byte{0xbf}};
  EXPECT_EQ(bytes, want);
}

TEST(SparseCodec, LeavesRoomForInt8ValuesAtOneHundredAndTwentyTimes) {
  const Bytes bytes = Encode(*Make({.ratio = 0.01}), Gaussian(65536));
  const size_t without_values = bytes.size() - 655 * sizeof(float);
  // One byte for each value, a scale for each 64 of them, and the header of the tile.
  const size_t with_int8 = 64 + without_values + 655 + 4 * (655 / 64 + 2);
  EXPECT_GE(65536 * sizeof(float) / with_int8, 120u);
}

TEST(SparseCodec, RoundsTheValuesAsTheirCodecDoes) {
  const auto codec = Make({.ratio = 1}, MakeBf16Codec);
  const auto bf16 = MakeBf16Codec();
  const Floats values = Gaussian(1000);
  Floats got(1000);
  Floats want(1000);
  ASSERT_TRUE(codec->Decode(Encode(*codec, values), got).ok());
  ASSERT_TRUE(bf16->Decode(Encode(*bf16, values), want).ok());
  EXPECT_EQ(got, want);
}

// One tile of a tensor may have to send all of its values.
TEST(SparseCodec, HasRoomForWhatATensorsThresholdSelects) {
  for (const MakeValues values : {MakeFp32Codec, MakeBf16Codec}) {
    const auto codec = Make({.ratio = 0.01, .scope = SelectorScope::kTensor}, values);
    for (const float threshold : {1e-3f, 0.05f, 0.7f, 3.0f, 10.0f}) {
      const Floats tile = Gaussian(65536);
      Floats residual(tile.size());
      const Bytes bytes = Encode(*codec, tile, residual, {.threshold = threshold});
      Floats decoded(tile.size());
      ASSERT_TRUE(codec->Decode(bytes, decoded).ok());
      for (size_t i = 0; i < tile.size(); ++i) {
        ASSERT_NEAR(decoded[i] + residual[i], tile[i], 1e-6);
        ASSERT_TRUE(decoded[i] != 0 || std::abs(tile[i]) < threshold);
      }
    }
    EXPECT_EQ(codec->traits().contraction, 0) << "of a tile alone";
  }
}

// A quarter of the positions, as at the beginning of a warm-up, cost about their entropy:
// 0.811 bits per element, where a bitmap takes 1.
TEST(SparseCodec, IndicesOfAWarmupCostLittleMoreThanTheirEntropy) {
  for (const double ratio : {0.25, 0.1, 0.03, 0.01, 0.001}) {
    const Bytes bytes = Encode(*Make({.ratio = ratio}), Gaussian(65536));
    const double k = std::floor(ratio * 65536);
    const double p = k / 65536;
    const double entropy = -65536 * (p * std::log2(p) + (1 - p) * std::log2(1 - p)) / 8;
    EXPECT_LE(static_cast<double>(bytes.size()) - 12 - 4 * k, 1.03 * entropy + 8)
        << ratio;
  }
}

TEST(SparseCodec, BlocksAreLossless) {
  const auto codec = Make({.kind = SelectorKind::kBlocks});
  Floats values(65536);
  for (const uint32_t i : {0u, 777u, 40000u, 65535u}) values[i] = -3;
  values[5000] = -0.0f;
  const Bytes bytes = Encode(*codec, values);
  EXPECT_EQ(bytes.size(), 12u + 32 + 5 * 256 * 4);
  Floats decoded(values.size(), 1.0f);
  ASSERT_TRUE(codec->Decode(bytes, decoded).ok());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(values[i]));
  }
  EXPECT_TRUE(codec->traits().unbiased);
  EXPECT_EQ(codec->traits().contraction, 1);
}

TEST(SparseCodec, RandomKSendsNoIndicesAndAnyDecoderFindsThem) {
  const auto worker = Make({.kind = SelectorKind::kRandomK, .ratio = 0.01, .seed = 3});
  const auto server = Make({.kind = SelectorKind::kThreshold});
  const Floats values = Gaussian(65536);
  Floats residual(values.size());
  const Bytes bytes = Encode(*worker, values, residual, {.seed = 8, .step = 2});
  EXPECT_EQ(bytes.size(), 12u + 8 + 655 * 4);
  Floats decoded(values.size());
  ASSERT_TRUE(server->Decode(bytes, decoded).ok());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(decoded[i] + residual[i], values[i]);
    ASSERT_TRUE(decoded[i] == 0 || residual[i] == 0);
  }
  // Another worker must send the same positions.
  const Bytes other = Encode(*worker, Gaussian(65536, 2), {}, {.seed = 9, .step = 2});
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 20, other.begin()));
}

TEST(SparseCodec, UnbiasedRandomKMultipliesByWhatIsMissing) {
  const auto codec = Make(kUnbiased);
  const Bytes bytes = Encode(*codec, Floats(1000, 1.0f));
  Floats decoded(1000);
  ASSERT_TRUE(codec->Decode(bytes, decoded).ok());
  EXPECT_EQ(std::ranges::count(decoded, 4.0f), 250);
  EXPECT_EQ(std::ranges::count(decoded, 0.0f), 750);
}

// Uses Laplacian values, as gradients often are: random-k loses almost three times as
// much.
TEST(SparseCodec, ProportionalHasLessVarianceThanRandomK) {
  std::mt19937 random(5);
  std::exponential_distribution<float> exponential;
  Floats values(65536);
  for (float& value : values) value = exponential(random) * (random() % 2 == 0 ? 1 : -1);
  const auto squared_error = [&](const SelectorSpec& spec) {
    const auto codec = Make(spec);
    double sum = 0;
    for (uint64_t step = 0; step < 20; ++step) {
      Floats decoded(values.size());
      EXPECT_TRUE(
          codec->Decode(Encode(*codec, values, {}, {.step = step}), decoded).ok());
      for (size_t i = 0; i < values.size(); ++i) {
        sum += std::pow(double{decoded[i]} - values[i], 2);
      }
    }
    return sum;
  };
  EXPECT_LT(squared_error({.kind = SelectorKind::kProportional, .ratio = 0.25}),
            0.4 * squared_error(kUnbiased));
}

TEST(SparseCodec, UnbiasedRandomKHasTheVarianceOfTheory) {
  const auto codec = Make(kUnbiased);
  const Floats values = Gaussian(400);
  double norm = 0;
  for (const float value : values) norm += double{value} * value;
  double error = 0;
  constexpr int kDraws = 4000;
  Floats residual(values.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    Encode(*codec, values, residual, {.step = static_cast<uint64_t>(draw)});
    for (const float lost : residual) error += double{lost} * lost / kDraws;
  }
  EXPECT_NEAR(error / norm, 3.0, 0.05);
}

TEST(SparseCodec, DecodesValuesThatItWasToldOf) {
  const Bytes bytes = Encode(*Make({.ratio = 0.1}, MakeBf16Codec), Gaussian(100));
  Floats decoded(100);
  EXPECT_EQ(Make({})->Decode(bytes, decoded).code(), absl::StatusCode::kInvalidArgument);
  std::shared_ptr<const Codec> bf16 = MakeBf16Codec();
  const auto both =
      MakeSparseCodec({.values = MakeFp32Codec(), .also_decoded = {std::move(bf16)}});
  ASSERT_TRUE(both.ok());
  EXPECT_TRUE((*both)->Decode(bytes, decoded).ok());
}

TEST(SparseCodec, RefusesDamagedHeaders) {
  const auto codec = Make({.ratio = 0.05});
  const Bytes good = Encode(*codec, Gaussian(1000));
  const auto refused = [&](size_t offset, uint8_t value) {
    Bytes bad = good;
    bad[offset] = std::byte{value};
    Floats sums(1000, 3.5f);
    const bool untouched_refusal =
        codec->DecodeAdd(bad, 1, sums).code() == absl::StatusCode::kInvalidArgument &&
        sums == Floats(1000, 3.5f);
    return untouched_refusal && !codec->Validate(bad, 1000).ok();
  };
  ASSERT_TRUE(codec->Validate(good, 1000).ok());
  EXPECT_TRUE(refused(0, 51)) << "another count";
  EXPECT_TRUE(refused(1, 4)) << "a count beyond the tile";
  EXPECT_TRUE(refused(3, 255)) << "a count beyond any tile";
  EXPECT_TRUE(refused(4, 2)) << "a codec that it does not know";
  EXPECT_TRUE(refused(4, 16)) << "sparse values";
  EXPECT_TRUE(refused(6, 77)) << "an unknown coder";
  EXPECT_TRUE(refused(7, 31)) << "an impossible Rice parameter";
  EXPECT_TRUE(refused(8, 0)) << "no indices";
  EXPECT_TRUE(refused(11, 255)) << "more indices than bytes";
}

TEST(SparseCodec, NeverNeedsMuchMoreThanItsValues) {
  for (const double ratio : {0.001, 0.01, 0.5, 0.97, 1.0}) {
    for (const SelectorKind kind : {SelectorKind::kTopK, SelectorKind::kTopKReuse,
                                    SelectorKind::kThreshold, SelectorKind::kBlocks}) {
      const auto codec = Make({.kind = kind, .ratio = ratio});
      EXPECT_LE(codec->MaxEncodedBytes(65536), 65536u * 4 + 64) << ratio;
    }
  }
}

TEST(SparseCodec, PromisesWhatItsPartsPromise) {
  EXPECT_EQ(Make({.ratio = 0.01})->traits().contraction, 0.005);
  EXPECT_EQ(Make({.ratio = 1})->traits().contraction, 1);
  EXPECT_FALSE(Make({.ratio = 0.01})->traits().unbiased);
  EXPECT_TRUE(Make(kUnbiased)->traits().unbiased);
  EXPECT_FALSE(Make(kUnbiased, MakeBf16Codec)->traits().unbiased);
  EXPECT_EQ(Make({.kind = SelectorKind::kThreshold})->traits().contraction, 0);
  EXPECT_TRUE(Make({})->traits().finite_only);
  EXPECT_EQ(Make({})->traits().strip, kTileElements);
}

TEST(SparseCodec, IsNotMadeOfUnusableParts) {
  const auto code = [](SparseOptions options) {
    return MakeSparseCodec(std::move(options)).status().code();
  };
  std::shared_ptr<const Codec> sparse = Make({});
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.values = sparse}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.values = MakeFp32Codec(), .also_decoded = {sparse}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.selector = {.ratio = 0}, .values = MakeFp32Codec()}),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace syncline
