#include "comm/base/dtype.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace syncline {
namespace {

// Returns the nearest BF16, found by comparing distances in float64; in a tie, the one
// with the even bit. The value after the largest finite one counts as 2^128, as IEEE 754
// rounding requires.
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

TEST(StochasticBf16, RoundsUpForExactlyAsManyRandomNumbersAsTheRemainderSays) {
  for (const uint32_t upper : {0x0000u, 0x0001u, 0x3f80u, 0xbfffu, 0x7f7eu, 0x8000u}) {
    for (const uint32_t lower : {0u, 1u, 0x1234u, 0x8000u, 0xffffu}) {
      const float value = std::bit_cast<float>((upper << 16) | lower);
      uint32_t ups = 0;
      for (uint32_t random = 0; random < 65536; ++random) {
        // Bits above the lower 16 must not matter.
        const uint16_t rounded = StochasticBf16FromFloat(value, random | random << 16);
        ASSERT_TRUE(rounded == upper || rounded == upper + 1);
        ups += rounded - upper;
      }
      EXPECT_EQ(ups, lower) << std::hex << upper;
    }
  }
}

TEST(StochasticBf16, KeepsInfinitiesNansAndFiniteness) {
  for (const uint32_t random : {0u, 1u, 0x7fffu, 0xffffu}) {
    EXPECT_EQ(StochasticBf16FromFloat(std::bit_cast<float>(0x7f800000u), random), 0x7f80);
    EXPECT_EQ(StochasticBf16FromFloat(std::bit_cast<float>(0xff800000u), random), 0xff80);
    EXPECT_EQ(StochasticBf16FromFloat(std::bit_cast<float>(0x7f800001u), random), 0x7fc0);
    EXPECT_EQ(StochasticBf16FromFloat(std::bit_cast<float>(0xffffffffu), random), 0xffff);
    EXPECT_EQ(StochasticBf16FromFloat(std::bit_cast<float>(0x7f7fffffu), random), 0x7f7f);
    EXPECT_EQ(StochasticBf16FromFloat(std::bit_cast<float>(0xff7f0001u), random), 0xff7f);
  }
}

// Returns the value of a half by the definition of IEEE 754, in float64.
double ValueOfHalf(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int mantissa = half & 0x3ff;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24)
                                         : std::ldexp(mantissa + 1024, exponent - 25);
  return half >> 15 == 0 ? magnitude : -magnitude;
}

bool IsNanHalf(uint16_t half) { return (half & 0x7fff) > 0x7c00; }

TEST(F16, WidensEveryHalfExactly) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = FloatFromF16(half);
    ASSERT_EQ(std::isnan(value), IsNanHalf(half)) << std::hex << bits;
    ASSERT_EQ(std::signbit(value), half >> 15 == 1) << std::hex << bits;
    if (IsNanHalf(half)) continue;
    if ((half & 0x7fff) == 0x7c00) {
      ASSERT_TRUE(std::isinf(value));
    } else {
      ASSERT_EQ(value, ValueOfHalf(half)) << std::hex << bits;
    }
  }
}

TEST(F16, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const uint16_t back = F16FromFloat(FloatFromF16(half));
    // A signalling NaN becomes its quiet form; all others are the same bits.
    ASSERT_EQ(back, IsNanHalf(half) ? half | 0x0200 : half) << std::hex << bits;
  }
}

// Between two neighbouring halves, the midpoint rounds to the even one, and the floats
// next to the midpoint to the nearer one. The value after the largest half counts as
// 2^16.
TEST(F16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    const double above = high == 0x7c00 ? 0x1p16 : ValueOfHalf(high);
    const auto middle = static_cast<float>((ValueOfHalf(low) + above) / 2);  // exact
    for (const uint16_t sign : {uint16_t{0}, uint16_t{0x8000}}) {
      const float side = sign == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(F16FromFloat(side * std::nextafter(middle, 0.0f)), sign | low) << bits;
      ASSERT_EQ(F16FromFloat(side * middle), sign | (low % 2 == 0 ? low : high)) << bits;
      ASSERT_EQ(F16FromFloat(side * std::nextafter(middle, 1e6f)), sign | high) << bits;
    }
  }
}

TEST(F16, KeepsNansAndTheirSigns) {
  for (uint32_t mantissa : {1u, 0x1fffu, 0x2000u, 0x7fffffu, 0x400000u}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const uint16_t half =
          F16FromFloat(std::bit_cast<float>(sign | 0x7f800000u | mantissa));
      EXPECT_EQ(half & 0x7e00, 0x7e00);
      EXPECT_EQ(half >> 15, sign >> 31);
    }
  }
}

// GCC 12 and Clang 15 are the first to have the type for x86.
#if defined(__FLT16_MAX__) && (!defined(__clang__) || __clang_major__ >= 15)
TEST(F16, AgreesWithTheCompilersHalf) {
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x8000u, 0xffffu}) {
      const float value = std::bit_cast<float>((upper << 16) | lower);
      const auto half = static_cast<_Float16>(value);
      ASSERT_EQ(F16FromFloat(value), std::bit_cast<uint16_t>(half))
          << std::hex << upper << " " << lower;
      if (std::isnan(value)) continue;
      ASSERT_EQ(FloatFromF16(std::bit_cast<uint16_t>(half)), static_cast<float>(half));
    }
  }
}
#endif

TEST(DType, KnowsItsBytes) {
  EXPECT_EQ(DTypeBytes(DType::kF32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kBf16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kF16), 2u);
}

}  // namespace
}  // namespace syncline
