#include "comm/codec/bf16/bf16.h"

#include "comm/base/dtype.h"
#include "comm/codec/codec_contract.h"

namespace syncline {
namespace {

// dtype_test.cc checks the scalar rule itself against float64 distances.
float RoundTrip(float x, uint32_t /*random*/) { return FloatFromBf16(Bf16FromFloat(x)); }

INSTANTIATE_TEST_SUITE_P(Bf16, CodecContract,
                         ::testing::Values(CodecCase{.make = MakeBf16Codec,
                                                     .reference = RoundTrip}));

float StochasticRoundTrip(float x, uint32_t random) {
  return FloatFromBf16(StochasticBf16FromFloat(x, random));
}

INSTANTIATE_TEST_SUITE_P(StochasticBf16, CodecContract,
                         ::testing::Values(CodecCase{.make = MakeStochasticBf16Codec,
                                                     .reference = StochasticRoundTrip}));

TEST(Bf16Codec, NeedsExactlyTwoBytesPerElement) {
  EXPECT_EQ(MakeBf16Codec()->MaxEncodedBytes(65536), 131072u);
  EXPECT_EQ(MakeBf16Codec()->MaxEncodedBytes(1), 2u);
}

TEST(Bf16Codec, WritesLittleEndianUpperHalves) {
  float values[] = {1.0f, -2.0f};  // 0x3f800000, 0xc0000000
  std::byte bytes[4];
  ASSERT_EQ(MakeBf16Codec()->Encode(values, {}, {}, bytes), 4u);
  EXPECT_EQ(bytes[0], std::byte{0x80});
  EXPECT_EQ(bytes[1], std::byte{0x3f});
  EXPECT_EQ(bytes[2], std::byte{0x00});
  EXPECT_EQ(bytes[3], std::byte{0xc0});
}

// Checks the vector kernel on every possible upper half, with lower halves around the
// rounding border.
TEST(Bf16Codec, KernelEqualsTheScalarRuleOnAllUpperHalves) {
  const auto codec = MakeBf16Codec();
  std::vector<float> values(65536);
  std::vector<std::byte> bytes(2 * values.size());
  for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    for (uint32_t i = 0; i < 65536; ++i)
      values[i] = std::bit_cast<float>((i << 16) | lower);
    codec->Encode(values, {}, {}, bytes);
    for (uint32_t i = 0; i < 65536; ++i) {
      uint16_t got;
      std::memcpy(&got, bytes.data() + 2 * i, 2);
      ASSERT_EQ(got, Bf16FromFloat(std::bit_cast<float>((i << 16) | lower)))
          << i << " " << lower;
    }
  }
}

// Returns the mean of what `value` decodes to in 100,000 draws of neighbouring elements.
double MeanOfDraws(float value, const EncodeContext& context) {
  constexpr size_t kDraws = 100'000;
  const auto codec = MakeStochasticBf16Codec();
  double sum = 0;
  for (size_t first = 0; first < kDraws; first += 50'000) {
    std::vector<float> values(50'000, value);
    std::vector<std::byte> bytes(2 * values.size());
    EncodeContext here = context;
    here.step += first;
    codec->Encode(values, {}, here, bytes);
    EXPECT_TRUE(codec->Decode(bytes, values).ok());
    for (const float decoded : values) sum += decoded;
  }
  return sum / kDraws;
}

TEST(StochasticBf16Codec, MeanOfManyDrawsIsTheValue) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (uint32_t i = 0; i < 60; ++i) {
    const float value = uniform(random);
    const double mean = MeanOfDraws(value, {.seed = 5, .step = 1, .tensor = i});
    EXPECT_NEAR(mean, value, 3e-5 + 3e-5 * std::abs(value)) << i;
  }
}

TEST(StochasticBf16Codec, AnUpdateThatNearestEvenLosesArrivesInTheMean) {
  const float weight = 1.0f + 0x1p-10f;
  EXPECT_EQ(FloatFromBf16(Bf16FromFloat(weight)), 1.0f);
  EXPECT_NEAR(MeanOfDraws(weight, {}), weight, 6e-5);
}

TEST(StochasticBf16Codec, WhatABf16HoldsIsNotRounded) {
  std::vector<float> values(65536);
  std::vector<std::byte> bytes(2 * values.size());
  for (uint32_t i = 0; i < 65536; ++i) {
    values[i] = FloatFromBf16(static_cast<uint16_t>(i));
  }
  MakeStochasticBf16Codec()->Encode(values, {}, {.seed = 1}, bytes);
  for (uint32_t i = 0; i < 65536; ++i) {
    uint16_t got;
    std::memcpy(&got, bytes.data() + 2 * i, 2);
    ASSERT_EQ(got, std::isnan(values[i]) ? i | 0x0040 : i);
  }
}

TEST(StochasticBf16Codec, FiniteValuesStayFinite) {
  std::vector<float> values(4096, std::numeric_limits<float>::max());
  std::fill(values.begin() + 2048, values.end(), std::numeric_limits<float>::lowest());
  std::vector<std::byte> bytes(2 * values.size());
  const auto codec = MakeStochasticBf16Codec();
  codec->Encode(values, {}, {}, bytes);
  ASSERT_TRUE(codec->Decode(bytes, values).ok());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::abs(values[i]), FloatFromBf16(0x7f7f));
  }
}

TEST(StochasticBf16Codec, EachPartOfTheContextChangesTheRounding) {
  const auto codec = MakeStochasticBf16Codec();
  const auto encode = [&codec](const EncodeContext& context) {
    std::vector<float> values(1000, 1.0f + 0x1p-8f);
    std::vector<std::byte> bytes(2 * values.size());
    codec->Encode(values, {}, context, bytes);
    return bytes;
  };
  const auto original = encode({});
  EXPECT_EQ(encode({}), original);
  EXPECT_NE(encode({.seed = 1}), original);
  EXPECT_NE(encode({.step = 1}), original);
  EXPECT_NE(encode({.tensor = 1}), original);
  EXPECT_NE(encode({.first_element = 65536}), original);
  EXPECT_NE(encode({.first_element = uint64_t{1} << 32}), original);
}

}  // namespace
}  // namespace syncline
