#include "comm/codec/natural/natural.h"

#include "comm/codec/codec_test_util.h"
#include "comm/codec/lossy_codec_contract.h"

namespace syncline {
namespace {

INSTANTIATE_TEST_SUITE_P(Natural, LossyCodecContract,
                         ::testing::Values(LossyCodecCase{"Natural", MakeNaturalCodec}),
                         LossyCodecCaseName);

// The same rule in floating point: compares 23 random bits with the distance from the
// power of two below.
float Reference(float value, uint32_t i) {
  if (value == 0) return value;
  const double magnitude = std::abs(double{value});
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  double below = std::ldexp(0.5, exponent);
  double above = 2 * below;
  if (magnitude < 0x1p-126) {
    below = 0;
    above = 0x1p-126;
  }
  const double chance = (magnitude - below) / (above - below);
  const double draw = std::ldexp(static_cast<double>(kTestRandom.At(i) >> 9), -23);
  double rounded = chance + draw >= 1 ? above : below;
  if (rounded > 0x1p127) rounded = 0x1p127;
  return static_cast<float>(std::copysign(rounded, value));
}

TEST(NaturalCodec, DecodesToTheScalarReference) {
  for (const uint32_t n :
       {1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 1023u, 1024u, 1025u, 5000u, 65536u}) {
    for (const float size : {1.0f, 1e30f, 1e-30f, 1e-37f}) {
      std::vector<float> values = LogNormal(n, 2, size);
      values[n / 2] = n % 2 == 0 ? 0.0f : -0.0f;
      const std::vector<float> decoded = RoundTrip(*MakeNaturalCodec(), values);
      for (uint32_t i = 0; i < n; ++i) {
        const float want = Reference(values[i], i);
        ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(want))
            << i << ": " << values[i] << " became " << decoded[i] << ", not " << want;
      }
    }
  }
}

TEST(NaturalCodec, PowersOfTwoAreExactOver126BinaryOrders) {
  for (const int top : {127, 50, 0, -1, -100}) {
    std::vector<float> values;
    for (int e = top; e >= std::max(top - 125, -126); --e) {
      values.push_back(std::ldexp(e % 2 == 0 ? 1.0f : -1.0f, e));
    }
    EXPECT_EQ(RoundTrip(*MakeNaturalCodec(), values), values) << top;
  }
}

TEST(NaturalCodec, WhatIsTooFarBelowTheLargestIsKeptInTheResidual) {
  const std::vector<float> values = {0x1p60f, 0x1.8p-70f, -0x1p-80f};
  EXPECT_THAT(RoundTrip(*MakeNaturalCodec(), values),
              ::testing::ElementsAre(0x1p60f, 0.0f, 0.0f));
}

TEST(NaturalCodec, AboveTheLargestPowerOfTwoItTruncates) {
  const std::vector<float> values(1000, std::numeric_limits<float>::max());
  for (const float value : RoundTrip(*MakeNaturalCodec(), values))
    ASSERT_EQ(value, 0x1p127f);
}

TEST(NaturalCodec, WritesTheBaseThenSignAndExponent) {
  const std::vector<float> values = {1.0f, -0.5f, 0.0f};
  const std::vector<std::byte> bytes = Encoded(*MakeNaturalCodec(), values);
  ASSERT_EQ(bytes.size(), 4u);
  EXPECT_EQ(bytes[0], std::byte{1});     // 1.0 has the exponent 127, rounded up 128
  EXPECT_EQ(bytes[1], std::byte{126});   // 1 + 126 = 127
  EXPECT_EQ(bytes[2], std::byte{0xfd});  // the sign and 125
  EXPECT_EQ(bytes[3], std::byte{0});
}

TEST(NaturalCodec, TheVarianceIsAnEighthAtWorst) {
  const auto codec = MakeNaturalCodec();
  std::vector<float> values(kTileElements, 4.0f / 3);
  std::vector<float> residual(values.size());
  Encoded(*codec, values, residual);
  const double error = SquaredNorm(residual);
  const double sum = std::accumulate(residual.begin(), residual.end(), 0.0);
  const double square = 16.0 / 9 * kTileElements;
  EXPECT_NEAR(error / square, 0.125, 0.002);
  // 5 standard deviations of the mean.
  EXPECT_NEAR(sum / kTileElements, 0, 5 * std::sqrt(0.125 * 16 / 9 / kTileElements));
}

TEST(NaturalCodec, TheMeanOfValuesBelowTheSmallestPowerOfTwoIsTheValue) {
  const std::vector<float> values(kTileElements, 0x1p-128f);
  double sum = 0;
  for (const float decoded : RoundTrip(*MakeNaturalCodec(), values)) sum += decoded;
  EXPECT_NEAR(sum / kTileElements / 0x1p-128, 1, 0.05);
}

TEST(NaturalCodec, RefusesABaseBeyondFiniteExponents) {
  const auto codec = MakeNaturalCodec();
  const std::vector<float> values(9, 1.5f);
  std::vector<std::byte> bytes = Encoded(*MakeNaturalCodec(), values);
  bytes[0] = std::byte{127};
  EXPECT_TRUE(codec->Validate(bytes, 9).ok());
  bytes[0] = std::byte{128};
  EXPECT_EQ(codec->Validate(bytes, 9).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace syncline
