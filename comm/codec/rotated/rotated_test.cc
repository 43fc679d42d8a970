#include "comm/codec/rotated/rotated.h"

#include <bit>
#include <cstring>

#include "comm/base/isa.h"
#include "comm/base/tiling.h"
#include "comm/codec/codec_test_util.h"
#include "comm/codec/integer/integer.h"
#include "comm/codec/lossy_codec_contract.h"
#include "comm/codec/natural/natural.h"
#include "comm/codec/rotated/hadamard.h"
#include "comm/codec/sign/sign.h"

namespace syncline {
namespace {

constexpr auto kStochastic = IntegerRounding::kStochastic;

std::unique_ptr<Codec> RotatedInteger(const IntegerOptions& options) {
  return MakeRotatedCodec(MakeIntegerCodec(options));
}

INSTANTIATE_TEST_SUITE_P(
    Rotated, LossyCodecContract,
    ::testing::Values(
        LossyCodecCase{"Int8", [] { return RotatedInteger({.bits = 8}); }},
        LossyCodecCase{"Int4", [] { return RotatedInteger({.bits = 4}); }},
        LossyCodecCase{"Int2", [] { return RotatedInteger({.bits = 2}); }},
        LossyCodecCase{
            "Int4Stochastic",
            [] { return RotatedInteger({.bits = 4, .rounding = kStochastic}); }},
        LossyCodecCase{"TernGrad",
                       [] {
                         return RotatedInteger(
                             {.bits = 2, .rounding = kStochastic, .clip = 2.5f});
                       }},
        LossyCodecCase{"Sign", [] { return MakeRotatedCodec(MakeSignCodec({})); }},
        LossyCodecCase{"Natural", [] { return MakeRotatedCodec(MakeNaturalCodec()); }}),
    LossyCodecCaseName);

SYNCLINE_KERNEL void Transform(size_t n, float* values) { Hadamard(values, n); }

TEST(Hadamard, IsTheSumOverSignsOfCommonOnes) {
  for (size_t n = 1; n <= 4096; n *= 2) {
    const std::vector<float> x = Gaussian(static_cast<uint32_t>(n));
    std::vector<float> y = x;
    Kernel<Transform>::Run(n, y.data());
    for (size_t i = 0; i < n; i += n / 64 + 1) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) {
        sum += std::popcount(i & j) % 2 == 0 ? double{x[j]} : -double{x[j]};
      }
      ASSERT_NEAR(y[i], sum, 1e-5 * static_cast<double>(n)) << i << " of " << n;
    }
  }
}

// Transforms one bit of the index after another, one pair at a time.
void ScalarHadamard(std::span<float> x) {
  for (size_t h = 1; h < x.size(); h *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & h) != 0) continue;
      const float a = x[i];
      const float b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
  }
}

TEST(Hadamard, GivesTheBitsOfOnePairAtATime) {
  for (size_t n = 1; n <= 4096; n *= 2) {
    std::vector<float> x = Gaussian(static_cast<uint32_t>(n));
    std::vector<float> y = x;
    Kernel<Transform>::Run(n, y.data());
    ScalarHadamard(x);
    ASSERT_EQ(y, x) << n;
  }
}

TEST(Hadamard, TwiceIsNTimesTheSame) {
  for (size_t n = 1; n <= 4096; n *= 2) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i % 17) - 8;  // exact sums
    std::vector<float> y = x;
    Kernel<Transform>::Run(n, y.data());
    Kernel<Transform>::Run(n, y.data());
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(y[i], x[i] * static_cast<float>(n));
  }
}

// A second implementation of the rotation, in double precision.
std::vector<double> ReferenceRotation(std::span<const float> values, uint32_t seed) {
  const RandomBits signs(seed, 0, 0, 0);
  std::vector<double> y(values.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = signs.At(static_cast<uint32_t>(i)) >> 31 != 0 ? -values[i] : values[i];
  }
  for (size_t first = 0; first < y.size();) {
    const size_t m = std::min<size_t>(4096, std::bit_floor(y.size() - first));
    for (size_t h = 1; h < m; h *= 2) {
      for (size_t i = 0; i < m; ++i) {
        if ((i & h) != 0) continue;
        const double a = y[first + i];
        const double b = y[first + i + h];
        y[first + i] = (a + b) / std::sqrt(2.0);
        y[first + i + h] = (a - b) / std::sqrt(2.0);
      }
    }
    first += m;
  }
  return y;
}

// The bytes after the header must encode the rotated values, up to rounding.
TEST(RotatedCodec, EncodesTheRotatedTile) {
  const auto inner = MakeIntegerCodec({.bits = 8, .block_log2 = 8});
  const auto codec = RotatedInteger({.bits = 8, .block_log2 = 8});
  for (const uint32_t n : {1u, 2u, 3u, 255u, 256u, 257u, 4095u, 4097u, 9999u, 65536u}) {
    const std::vector<float> values = Gaussian(n);
    const std::vector<std::byte> bytes = Encoded(*codec, values);
    ASSERT_EQ(bytes.size(), 8 + inner->MaxEncodedBytes(n));
    uint32_t seed = 0;
    std::memcpy(&seed, bytes.data(), 4);
    EXPECT_EQ(bytes[4], std::byte{6}) << "CodecId::kInt8";
    EXPECT_EQ(bytes[5], std::byte{0});
    EXPECT_EQ(bytes[6], std::byte{12});
    EXPECT_EQ(bytes[7], std::byte{0});
    std::vector<float> rotated(n);
    ASSERT_TRUE(inner->Decode(ByteView(bytes).subspan(8), rotated).ok());
    const std::vector<double> want = ReferenceRotation(values, seed);
    for (uint32_t i = 0; i < n; ++i) ASSERT_NEAR(rotated[i], want[i], 0.025) << i;
  }
}

TEST(RotatedCodec, DecodesToTheBitsOfTheScalarRotation) {
  const auto inner = MakeIntegerCodec({.bits = 4});
  const auto codec = RotatedInteger({.bits = 4});
  for (const uint32_t n : {1u, 2u, 3u, 255u, 257u, 4095u, 4097u, 9999u, 65536u}) {
    const std::vector<std::byte> bytes = Encoded(*codec, LogNormal(n, 1));
    uint32_t seed = 0;
    std::memcpy(&seed, bytes.data(), 4);
    std::vector<float> want(n);
    ASSERT_TRUE(inner->Decode(ByteView(bytes).subspan(8), want).ok());
    for (size_t first = 0; first < n;) {
      const size_t m = std::min<size_t>(4096, std::bit_floor(n - first));
      ScalarHadamard(std::span(want).subspan(first, m));
      const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(m)));
      for (size_t i = first; i < first + m; ++i) {
        const uint32_t random = RandomBits(seed, 0, 0, 0).At(static_cast<uint32_t>(i));
        want[i] *= random >> 31 != 0 ? -scale : scale;
      }
      first += m;
    }
    std::vector<float> decoded(n);
    ASSERT_TRUE(codec->Decode(bytes, decoded).ok());
    ASSERT_EQ(decoded, want) << n;
  }
}

TEST(RotatedCodec, TheSignsChangeWithTheContext) {
  const auto codec = RotatedInteger({});
  const std::vector<float> values = Gaussian(100);
  std::vector<std::byte> first(codec->MaxEncodedBytes(100));
  std::vector<std::byte> second(first.size());
  codec->Encode(values, {}, {.step = 1}, first);
  codec->Encode(values, {}, {.step = 2}, second);
  EXPECT_NE(std::memcmp(first.data(), second.data(), 4), 0);
}

// The purpose of the codec: the scale of a block fits values of similar size.
TEST(RotatedCodec, LosesLessOfHeavyTails) {
  const std::vector<float> values = LogNormal(kTileElements, 1);
  const auto gain = [&](const IntegerOptions& options) {
    return LostShare(*MakeIntegerCodec(options), values) /
           LostShare(*RotatedInteger(options), values);
  };
  EXPECT_GT(gain({.bits = 8}), 5);
  EXPECT_GT(gain({.bits = 4}), 5);
  EXPECT_GT(gain({.bits = 2}), 1.02);
  EXPECT_GT(gain({.bits = 4, .rounding = kStochastic}), 5);
  EXPECT_GT(gain({.bits = 2, .rounding = kStochastic}), 2);
  EXPECT_GT(LostShare(*MakeSignCodec({}), values) /
                LostShare(*MakeRotatedCodec(MakeSignCodec({})), values),
            1.5);
}

// A limit of the codec: if few values make up nearly all of the length, few levels fit
// them better without a rotation.
TEST(RotatedCodec, TwoBitsLoseMoreOfNearlySparseTiles) {
  const std::vector<float> values = LogNormal(kTileElements, 2);
  EXPECT_GT(LostShare(*RotatedInteger({.bits = 2}), values),
            LostShare(*MakeIntegerCodec({.bits = 2}), values));
}

TEST(RotatedCodec, OneLargeValueIsSpreadOverItsChunk) {
  std::vector<float> values(8192, 0.0f);
  values[4097] = 64;
  const auto codec = MakeRotatedCodec(MakeSignCodec({}));
  EXPECT_LT(LostShare(*codec, values), 1e-10) << "all of the chunk is +-1";
  EXPECT_GT(LostShare(*MakeSignCodec({}), values), 0.999);
}

TEST(RotatedCodec, HugeValuesAreNotRotated) {
  for (const float size : {0x1.8p95f, 0x1p96f, 0x1p127f}) {
    const std::vector<float> values = Gaussian(5000);
    std::vector<float> large;
    for (const float value : values) large.push_back(size * std::tanh(value));
    large[77] = size;
    const auto codec = RotatedInteger({.bits = 8});
    EXPECT_EQ(Encoded(*codec, large)[6],
              std::byte{size < 0x1p96f ? uint8_t{12} : uint8_t{0}});
    const std::vector<float> decoded = RoundTrip(*codec, large);
    for (size_t i = 0; i < large.size(); ++i) {
      ASSERT_NEAR(decoded[i] / size, large[i] / size, 0.03) << i;
    }
  }
}

TEST(RotatedCodec, RefusesHeadersThatNoEncoderWrites) {
  const auto codec = RotatedInteger({.bits = 8});
  const std::vector<std::byte> good = Encoded(*codec, Gaussian(77));
  ASSERT_TRUE(codec->Validate(good, 77).ok());
  const auto refuses = [&](size_t at, uint8_t byte) {
    std::vector<std::byte> bad = good;
    bad[at] = std::byte{byte};
    return codec->Validate(bad, 77).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refuses(0, 99)) << "any seed";
  EXPECT_TRUE(refuses(4, 7)) << "int4";
  EXPECT_TRUE(refuses(5, 1));
  EXPECT_TRUE(refuses(6, 11)) << "chunks of 2048";
  EXPECT_FALSE(refuses(6, 0)) << "not rotated";
  EXPECT_TRUE(refuses(7, 1));
  EXPECT_TRUE(refuses(8, 7)) << "the inner codec's header";
}

}  // namespace
}  // namespace syncline
