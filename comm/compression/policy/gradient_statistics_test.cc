#include "comm/compression/policy/gradient_statistics.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "comm/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

std::vector<float> Gaussian() {
  std::mt19937 random(1);
  std::vector<float> values(kTileElements);
  for (float& value : values) value = std::normal_distribution<float>()(random);
  return values;
}

TEST(GradientStatistics, TheLargestOfKnownDistributionsHoldWhatTheoryGives) {
  std::vector<float> values = Gaussian();
  // 2 (t phi(t) + Q(t)) at the t with Q(t) = 0.005.
  EXPECT_NEAR(MeasureGradient(values).top_energy, 0.0845, 0.004);
  std::mt19937 random(2);
  for (float& value : values) value = std::exponential_distribution<float>()(random);
  // (t^2 + 2 t + 2) exp(-t) / 2 at t = ln 100.
  EXPECT_NEAR(MeasureGradient(values).top_energy, 0.162, 0.008);
  for (float& value : values)
    value *= std::exp(2 * std::normal_distribution<float>()(random));
  EXPECT_GT(MeasureGradient(values).top_energy, 0.5);
  values.assign(kTileElements, 3.0f);
  EXPECT_NEAR(MeasureGradient(values).top_energy, 655.0 / 65536, 1e-9);
}

TEST(GradientStatistics, CountsBlocksThatAreNotZero) {
  std::vector<float> values(kTileElements);
  EXPECT_EQ(MeasureGradient(values).nonzero_blocks, 0);
  EXPECT_EQ(MeasureGradient(values).top_energy, 0);
  values[300] = 1;
  values[511] = 1;
  values[65535] = -0.0f;
  EXPECT_EQ(MeasureGradient(values).nonzero_blocks, 2.0 / 256);
  EXPECT_EQ(MeasureGradient(values).top_energy, 1);
  EXPECT_EQ(MeasureGradient(std::span(values).first(301)).nonzero_blocks, 0.5);
  EXPECT_EQ(MeasureGradient(Gaussian()).nonzero_blocks, 1);
}

TEST(GradientStatistics, TilesThatSayNothingGiveTheDefaults) {
  EXPECT_EQ(MeasureGradient({}).nonzero_blocks, 1);
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(1000);
    values[7] = bad;
    EXPECT_EQ(MeasureGradient(values).nonzero_blocks, 1);
    EXPECT_EQ(MeasureGradient(values).top_energy, 0);
  }
  const std::vector<float> huge(1000, std::numeric_limits<float>::max());
  EXPECT_NEAR(MeasureGradient(huge).top_energy, 0.01, 1e-9);
}

}  // namespace
}  // namespace syncline
