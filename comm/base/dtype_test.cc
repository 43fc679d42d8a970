#include "comm/base/dtype.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace syncline {
namespace {

// The nearest BF16 found by comparing distances in float64; on a tie the one with the
// even bit. The value after the largest finite one counts as 2^128, as IEEE 754 rounding
// says.
uint16_t Nearest(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto down = static_cast<uint16_t>(bits >> 16);
  if (std::isinf(value) || (bits & 0xffffu) == 0) return down;
  const auto up = static_cast<uint16_t>(down + 1);  // away from zero
  const double magnitude = std::abs(static_cast<double>(value));
  const double below = std::abs(static_cast<double>(FloatFromBf16(down)));
  const double above = std::isinf(FloatFromBf16(up))
                           ? 0x1p128
                           : std::abs(static_cast<double>(FloatFromBf16(up)));
  if (magnitude - below != above - magnitude) {
    return magnitude - below < above - magnitude ? down : up;
  }
  return down % 2 == 0 ? down : up;
}

TEST(Bf16, RoundsToNearestEvenForEveryUpperHalfAndManyLowerHalves) {
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower :
         {0x0000u, 0x0001u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>((upper << 16) | lower);
      if (std::isnan(value)) continue;
      ASSERT_EQ(Bf16FromFloat(value), Nearest(value))
          << std::hex << upper << " " << lower;
    }
  }
}

TEST(Bf16, EveryBf16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto original = static_cast<uint16_t>(bits);
    const float value = FloatFromBf16(original);
    const uint16_t back = Bf16FromFloat(value);
    // A signalling NaN becomes its quiet form; all others are the same bits.
    ASSERT_EQ(back, std::isnan(value) ? original | 0x0040 : original) << std::hex << bits;
  }
}

TEST(Bf16, EveryNanStaysAQuietNanOfTheSameSign) {
  for (uint32_t mantissa : {1u, 0xffffu, 0x10000u, 0x7fffffu, 0x3f8000u, 0x400000u}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const float nan = std::bit_cast<float>(sign | 0x7f800000u | mantissa);
      const uint16_t rounded = Bf16FromFloat(nan);
      EXPECT_TRUE(std::isnan(FloatFromBf16(rounded)));
      EXPECT_EQ(rounded & 0x0040, 0x0040);
      EXPECT_EQ(rounded >> 15, sign >> 31);
    }
  }
}

TEST(Bf16, OverflowsToInfinityHalfAStepAboveTheLargestValue) {
  EXPECT_EQ(Bf16FromFloat(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x7f7f7fffu)), 0x7f7f);
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x7f7f8000u)), 0x7f80);
}

TEST(DType, KnowsItsBytes) {
  EXPECT_EQ(DTypeBytes(DType::kF32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kBf16), 2u);
}

}  // namespace
}  // namespace syncline
