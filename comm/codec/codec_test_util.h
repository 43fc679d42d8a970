// Helpers that the tests of quantizers share: inputs, encodings, and the checks for
// codecs with scaled blocks (block_scales.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "comm/base/random.h"
#include "comm/codec/codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {

inline constexpr EncodeContext kTestContext = {
    .seed = 7, .step = 11, .tensor = 3, .first_element = 131072};

// The random bits that scalar references round by.
inline constexpr RandomBits kTestRandom(kTestContext.seed, kTestContext.step,
                                        kTestContext.tensor, kTestContext.first_element);

inline std::vector<float> Gaussian(uint32_t n, float size = 1) {
  std::mt19937 random(n);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Log-normal magnitudes of both signs: the larger the spread, the heavier the tail.
inline std::vector<float> LogNormal(uint32_t n, float spread, float size = 1) {
  std::mt19937 random(n);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) {
    value = std::copysign(size * std::exp(spread * normal(random)), normal(random));
  }
  return values;
}

inline std::vector<std::byte> Encoded(const Codec& codec, std::span<const float> values,
                                      std::span<float> residual = {}) {
  std::vector<std::byte> bytes(
      codec.MaxEncodedBytes(static_cast<uint32_t>(values.size())));
  const size_t used = codec.Encode(values, residual, kTestContext, bytes);
  return {bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(used)};
}

inline std::vector<float> RoundTrip(const Codec& codec, std::span<const float> values) {
  std::vector<float> decoded(values.size());
  EXPECT_TRUE(codec.Decode(Encoded(codec, values), decoded).ok());
  return decoded;
}

inline double SquaredNorm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return sum;
}

// Returns the share of |x|^2 that an encoding loses.
inline double LostShare(const Codec& codec, std::span<const float> values) {
  std::vector<float> residual(values.size());
  Encoded(codec, values, residual);
  return SquaredNorm(residual) / SquaredNorm(values);
}

// Sums in the order in which kernels sum blocks, so that every instruction set gives the
// same bits.
inline float SumIn32Lanes(std::span<const float> terms) {
  std::vector<float> lanes(32);
  for (size_t i = 0; i < terms.size(); ++i) lanes[i % 32] += terms[i];
  while (lanes.size() > 1) {
    const size_t half = lanes.size() / 2;
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    lanes.resize(half);
  }
  return lanes[0];
}

// ---- Codecs with scaled blocks ----

// Checks that every codec that `make` makes, of any block size, decodes the bytes of all
// others.
inline void ExpectDecodersTakeAnyBlockSize(
    const std::function<std::unique_ptr<Codec>(uint32_t block_log2)>& make) {
  const std::vector<float> values = Gaussian(10000);
  std::vector<float> want(values.size());
  std::vector<std::vector<std::byte>> encodings;
  std::vector<WeightedBytes> parts;
  for (uint32_t block_log2 = 8; block_log2 <= 16; ++block_log2) {
    const auto codec = make(block_log2);
    encodings.push_back(Encoded(*codec, values));
    ASSERT_TRUE(codec->DecodeAdd(encodings.back(), 0.5f, want).ok());
  }
  for (const auto& bytes : encodings) parts.push_back({bytes, 0.5f});
  std::vector<float> got(values.size());
  ASSERT_TRUE(make(12)->DecodeAddAll(parts, got).ok());
  EXPECT_EQ(got, want);
}

// Checks that bytes that no encoder writes are refused. `bits` are those of an element;
// 77 elements leave some bits of the last byte unused.
inline void ExpectRefusesBadBlocks(const Codec& codec, uint32_t bits) {
  const std::vector<std::byte> good = Encoded(codec, Gaussian(77));
  const auto refuses = [&](size_t at, std::initializer_list<uint8_t> bytes) {
    std::vector<std::byte> bad = good;
    for (const uint8_t byte : bytes) bad[at++] = std::byte{byte};
    return codec.Validate(bad, 77).code() == absl::StatusCode::kInvalidArgument;
  };
  ASSERT_TRUE(codec.Validate(good, 77).ok());
  EXPECT_TRUE(refuses(0, {7})) << "block of 128";
  EXPECT_TRUE(refuses(0, {17})) << "block of 131,072";
  EXPECT_TRUE(refuses(1, {1})) << "not zero";
  EXPECT_TRUE(refuses(3, {1})) << "not zero";
  EXPECT_TRUE(refuses(4, {0, 0, 0x80, 0x7f})) << "infinity";
  EXPECT_TRUE(refuses(4, {0, 0, 0xc0, 0xff})) << "NaN";
  EXPECT_TRUE(refuses(4, {0, 0, 0x80, 0xbf})) << "-1";
  const uint32_t used = 77 * bits % 8;
  if (used == 0) return;
  const auto beyond = static_cast<uint8_t>(1u << used);
  EXPECT_TRUE(refuses(good.size() - 1, {beyond})) << "element 78";
  EXPECT_FALSE(refuses(good.size() - 1, {static_cast<uint8_t>(beyond - 1)}));
}

}  // namespace syncline
