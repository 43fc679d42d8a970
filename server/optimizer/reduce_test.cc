#include "server/optimizer/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(SumOfSquares, EqualsTheLongDoubleSumForEverySize) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const size_t n : {0, 1, 15, 16, 17, 31, 32, 33, 255, 4096, 65535, 65536}) {
    std::vector<float> values(n);
    long double want = 0;
    for (float& value : values) {
      value = normal(random) * 1e3f;
      want += static_cast<long double>(value) * value;
    }
    EXPECT_NEAR(SumOfSquares(values), static_cast<double>(want),
                1e-13 * static_cast<double>(want));
  }
}

// A scalar loop adds in the documented order. Every CPU must compute the same bits.
TEST(SumOfSquares, AddsInTheDocumentedOrder) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> values(1000);
  double lanes[16] = {};
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random);
    lanes[i % 16] += static_cast<double>(values[i]) * values[i];
  }
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  EXPECT_EQ(SumOfSquares(values), lanes[0]);
}

TEST(RunningSquares, HasTheSameBitsInAnyPieces) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> values(1000);
  for (float& value : values) value = normal(random);
  for (const size_t piece : {16, 48, 992, 1024}) {
    RunningSquares squares;
    for (size_t first = 0; first < values.size(); first += piece) {
      squares.Add(
          std::span(values).subspan(first).first(std::min(piece, values.size() - first)));
    }
    EXPECT_EQ(squares.Total(), SumOfSquares(values)) << piece;
  }
}

TEST(SumOfSquares, IsNotFiniteExactlyWhenAValueIsNotFinite) {
  for (const size_t bad : {0u, 15u, 16u, 99u, 100u}) {
    std::vector<float> values(101, 1.0f);
    values[bad] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(std::isfinite(SumOfSquares(values))) << bad;
    values[bad] = -std::numeric_limits<float>::infinity();
    EXPECT_FALSE(std::isfinite(SumOfSquares(values))) << bad;
  }
  const std::vector<float> huge(65536, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(SumOfSquares(huge)));
}

}  // namespace
}  // namespace syncline
