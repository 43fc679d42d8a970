#include "worker/client/tensor_memory.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace syncline {
namespace {

// Rounds to the nearest 16-bit number, ties to even. It compares distances in double
// precision, while the kernels use bits.
uint16_t NearestByDistance(double value, float (*widen)(uint16_t)) {
  uint16_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float candidate = widen(static_cast<uint16_t>(bits));
    if (!std::isfinite(candidate) || std::signbit(candidate) != std::signbit(value))
      continue;
    const double d = std::abs(candidate - value);
    const bool is_nearer = d < distance || (d == distance && (bits & 1) == 0);
    if (is_nearer) best = static_cast<uint16_t>(bits);
    distance = std::min(distance, d);
  }
  return best;
}

float WidenOne(uint16_t bits, DType dtype) {
  float value = 0;
  Widen({.data = &bits, .dtype = dtype}, {&value, 1});
  return value;
}

class TwoBytes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, TwoBytes, ::testing::Values(DType::kBf16, DType::kF16));

TEST_P(TwoBytes, AllValuesSurviveTheWayThereAndBack) {
  std::vector<uint16_t> bits(65536);
  for (uint32_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(bits.size());
  Widen({.data = bits.data(), .dtype = GetParam()}, wide);
  std::vector<uint16_t> back(bits.size());
  Narrow(wide, {.data = back.data(), .dtype = GetParam()});
  for (size_t i = 0; i < bits.size(); ++i) {
    if (std::isnan(wide[i])) {
      EXPECT_TRUE(std::isnan(WidenOne(back[i], GetParam()))) << i;
      EXPECT_EQ(back[i] & 0x8000, bits[i] & 0x8000) << i;
    } else {
      EXPECT_EQ(back[i], bits[i]) << i;
    }
  }
}

TEST_P(TwoBytes, RoundsToNearestAndTiesToEven) {
  const auto widen = GetParam() == DType::kBf16
                         ? [](uint16_t bits) { return WidenOne(bits, DType::kBf16); }
                         : [](uint16_t bits) { return WidenOne(bits, DType::kF16); };
  // The values are ties on both sides of an even number, their neighbours, and denormals
  // of FP16.
  const float one = widen(std::bit_cast<uint16_t>(
      static_cast<uint16_t>(GetParam() == DType::kBf16 ? 0x3f80 : 0x3c00)));
  ASSERT_EQ(one, 1.0f);
  const float unit = GetParam() == DType::kBf16 ? 0x1p-7f : 0x1p-10f;
  std::vector<float> values;
  for (const float multiple : {0.5f, 1.5f, 0.4999f, 0.5001f, 2.5f, -0.5f}) {
    values.push_back(one + multiple * unit);
    values.push_back(-(one + multiple * unit));
  }
  for (const float small : {0x1p-25f, 0x1.8p-24f, 0x1.4p-15f, -0x1p-24f}) {
    values.push_back(small);
  }
  std::vector<uint16_t> narrow(values.size());
  Narrow(values, {.data = narrow.data(), .dtype = GetParam()});
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(narrow[i], NearestByDistance(values[i], widen)) << values[i];
  }
}

TEST_P(TwoBytes, WhatIsTooLargeBecomesInfinity) {
  const std::vector<float> values = {3.4e38f, -3.4e38f,
                                     std::numeric_limits<float>::infinity()};
  std::vector<uint16_t> narrow(values.size());
  Narrow(values, {.data = narrow.data(), .dtype = GetParam()});
  for (size_t i = 0; i < values.size(); ++i) {
    const float back = WidenOne(narrow[i], GetParam());
    EXPECT_TRUE(std::isinf(back)) << values[i];
    EXPECT_EQ(std::signbit(back), std::signbit(values[i]));
  }
}

TEST_P(TwoBytes, TakesTensorsOfSeveralTilesAtOddAddresses) {
  for (const size_t elements : {0u, 1u, 63u, 65535u, 65536u, 65537u, 200000u}) {
    std::vector<float> values(elements);
    for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(i % 128);
    std::vector<std::byte> memory(2 * elements + 1);
    Narrow(values, {.data = memory.data() + 1, .dtype = GetParam()});
    std::vector<float> back(elements);
    Widen({.data = memory.data() + 1, .dtype = GetParam()}, back);
    EXPECT_EQ(back, values) << elements;
  }
}

}  // namespace
}  // namespace syncline
