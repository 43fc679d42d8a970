#include "comm/codec/sparse/tensor_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "comm/base/limits.h"
#include "comm/codec/sparse/magnitude.h"
#include "comm/codec/sparse/selector.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using Floats = std::vector<float>;

// Magnitudes below 2^-133 count as zeros.
const float kSmallest = std::ldexp(1.0f, -133);

uint64_t CountAtLeast(const Floats& values, float threshold) {
  return static_cast<uint64_t>(std::ranges::count_if(
      values, [&](float value) { return std::abs(value) >= threshold; }));
}

TensorHistogram HistogramOf(const Floats& values) {
  TensorHistogram histogram;
  histogram.Add(values);
  return histogram;
}

struct Input {
  const char* name = "";
  std::function<float(std::mt19937& random)> value = nullptr;
};

const std::vector<Input>& Inputs() {
  static const auto normal = [](std::mt19937& random) {
    return std::normal_distribution<float>()(random);
  };
  static const std::vector<Input> inputs = {
      {"Gaussian", normal},
      {"heavy-tailed",
       [](std::mt19937& random) {
         return normal(random) * std::exp(6 * normal(random));
       }},
      {"one in a hundred",
       [](std::mt19937& random) { return random() % 100 == 0 ? normal(random) : 0.0f; }},
      {"denormals",
       [](std::mt19937& random) {
         return std::bit_cast<float>(static_cast<uint32_t>(random() % 0x600000));
       }},
      {"seven magnitudes",
       [](std::mt19937& random) { return static_cast<float>(random() % 13) - 6; }},
      {"all equal", [](std::mt19937&) { return -0.5f; }},
      {"zeros", [](std::mt19937&) { return -0.0f; }},
      {"any bits but NaN and infinity",
       [](std::mt19937& random) {
         const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
         return std::isfinite(value) ? value : 1.0f;
       }},
  };
  return inputs;
}

TEST(TensorHistogram, ThresholdsAreReachedByHalfOfKToK) {
  for (const Input& input : Inputs()) {
    for (const uint32_t n : {1u, 2u, 100u, 31u, 65537u, 200000u}) {
      std::mt19937 random(n);
      Floats values(n);
      for (float& value : values) value = input.value(random);
      const TensorHistogram histogram = HistogramOf(values);
      Floats sorted = values;
      std::ranges::sort(sorted, std::greater<>(), [](float x) { return std::abs(x); });
      const uint64_t nonzero = CountAtLeast(values, kSmallest);
      for (const double ratio : {1e-6, 0.001, 0.01, 0.25, 1.0}) {
        const uint64_t k = TopCount({.ratio = ratio}, n, 0);
        const float threshold = histogram.ThresholdFor(k);
        if (threshold > 0) {
          const uint64_t count = CountAtLeast(values, threshold);
          EXPECT_LE(count, k) << input.name << " " << n << " " << ratio;
          EXPECT_GE(count, std::min((k + 1) / 2, nonzero)) << input.name << " " << n;
          continue;
        }
        // No threshold: more than half of k values lie within 1/128 of the k-th largest,
        // or all are zero.
        if (nonzero == 0) continue;
        ASSERT_GT(nonzero, k) << input.name << " " << n << " " << ratio;
        const float kth = std::abs(sorted[k - 1]);
        const float margin = std::max(kth / 64, 2 * kSmallest);
        EXPECT_GT(CountAtLeast(values, kth - margin) - CountAtLeast(values, kth + margin),
                  k / 2)
            << input.name << " " << n << " " << ratio;
      }
    }
  }
}

TEST(TensorHistogram, FindsNearlyKOfAGaussian) {
  std::mt19937 random(1);
  Floats values(1 << 20);
  for (float& value : values) value = std::normal_distribution<float>()(random);
  const TensorHistogram histogram = HistogramOf(values);
  for (const double ratio : {0.001, 0.01, 0.1}) {
    const uint64_t k = TopCount({.ratio = ratio}, values.size(), 0);
    EXPECT_GE(CountAtLeast(values, histogram.ThresholdFor(k)), k * 9 / 10) << ratio;
  }
}

TEST(TensorHistogram, TakesATensorInParts) {
  std::mt19937 random(2);
  Floats values(100'003);
  for (float& value : values) value = std::normal_distribution<float>()(random);
  const TensorHistogram whole = HistogramOf(values);
  TensorHistogram parts;
  for (size_t first = 0; first < values.size(); first += 12'345) {
    parts.Add(std::span(values).subspan(first,
                                        std::min<size_t>(12'345, values.size() - first)));
  }
  for (const uint64_t k : {1, 7, 1000, 50'000, 100'003}) {
    EXPECT_EQ(parts.ThresholdFor(k), whole.ThresholdFor(k)) << k;
  }
  parts.Clear();
  EXPECT_EQ(parts.ThresholdFor(1), 0);
  parts.Add(values);
  EXPECT_EQ(parts.ThresholdFor(1000), whole.ThresholdFor(1000));
}

TEST(TensorHistogram, NaNAndInfinityDoNotCount) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Floats values = {1, 2, 4, 8, -16, 32};
  const float threshold = HistogramOf(values).ThresholdFor(3);
  EXPECT_GT(threshold, 4);
  EXPECT_LE(threshold, 8);
  values.insert(values.end(), {kInfinity, -kInfinity, kNan, -kNan});
  EXPECT_EQ(HistogramOf(values).ThresholdFor(3), threshold);
  EXPECT_EQ(HistogramOf({kInfinity, kNan, 0}).ThresholdFor(1), 0);
}

// The purpose of the scope: the largest values of a tensor lie in few of its tiles.
TEST(TensorHistogram, TilesSendWhatTheTensorsLargestAre) {
  constexpr int kTiles = 8;
  constexpr SelectorSpec kSpec = {.ratio = 0.01, .scope = SelectorScope::kTensor};
  std::mt19937 random(3);
  std::vector<Floats> tiles(kTiles, Floats(kTileElements));
  TensorHistogram histogram;
  Floats all;
  for (int tile = 0; tile < kTiles; ++tile) {
    for (float& value : tiles[tile]) {
      value = std::normal_distribution<float>()(random) * (tile == 5 ? 100.0f : 1.0f);
    }
    histogram.Add(tiles[tile]);
    all.insert(all.end(), tiles[tile].begin(), tiles[tile].end());
  }
  const uint64_t k = TopCount(kSpec, all.size(), 0);
  const EncodeContext context = {.threshold = histogram.ThresholdFor(k)};
  uint64_t sent = 0;
  for (int tile = 0; tile < kTiles; ++tile) {
    const uint32_t count = Select(kSpec, tiles[tile], context).indices.count();
    if (tile == 5) {
      EXPECT_GT(count, 7 * TopCount(kSpec, kTileElements, 0));
    } else {
      EXPECT_EQ(count, 0u);
    }
    sent += count;
  }
  EXPECT_EQ(sent, CountAtLeast(all, context.threshold));
  EXPECT_GE(sent, k / 2);
  EXPECT_LE(sent, k);
}

}  // namespace
}  // namespace syncline
