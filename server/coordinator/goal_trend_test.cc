#include "server/coordinator/goal_trend.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr Goal kTime = {.kind = GoalKind::kStepP95, .limit = 150};

std::vector<TrendPoint> Points(size_t count, const std::function<double(double)>& value) {
  std::vector<TrendPoint> points;
  for (size_t i = 0; i < count; ++i) {
    const double seconds = 10 * static_cast<double>(i);
    points.push_back({.seconds = seconds, .value = value(seconds)});
  }
  return points;
}

// From -1 to 1, by its seed.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed * 2654435761u + 88172645463325252u) {}
  double operator()() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<double>(state_ % 20001) / 10000 - 1;
  }

 private:
  uint64_t state_;
};

TEST(SecondsToMiss, SaysWhenAClearTrendCrossesTheLimit) {
  Noise noise(1);
  // At 290 s it is 129; 0.1 a second.
  const auto points = Points(30, [&](double s) { return 100 + 0.1 * s + noise(); });
  const auto seconds = SecondsToMiss(points, kTime);
  ASSERT_TRUE(seconds.has_value());
  EXPECT_NEAR(*seconds, 210, 30);
}

TEST(SecondsToMiss, HasTheOtherDirectionForGoalsThatAreAtLeast) {
  const Goal rate = {.kind = GoalKind::kSamplesPerSecond, .limit = 1000};
  Noise noise(2);
  const auto falls = Points(30, [&](double s) { return 2000 - 2 * s + 10 * noise(); });
  const auto seconds = SecondsToMiss(falls, rate);
  ASSERT_TRUE(seconds.has_value());
  EXPECT_NEAR(*seconds, 210, 30);
  const auto rises = Points(30, [&](double s) { return 1100 + 2 * s + 10 * noise(); });
  EXPECT_FALSE(SecondsToMiss(rises, rate).has_value());
}

TEST(SecondsToMiss, IsSilentOfNoise) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Noise noise(seed);
    const auto points = Points(30, [&](double) { return 130 + 15 * noise(); });
    EXPECT_FALSE(SecondsToMiss(points, kTime).has_value()) << "seed " << seed;
  }
}

// Steps that come in bursts: what follows a slow window is slow as well.
TEST(SecondsToMiss, IsSilentOfNoiseThatLasts) {
  int warned = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Noise noise(seed);
    double wave = 0;
    const auto points = Points(30, [&](double) {
      wave = 0.7 * wave + noise();
      return 130 + 8 * wave;
    });
    warned += SecondsToMiss(points, kTime).has_value() ? 1 : 0;
  }
  EXPECT_LE(warned, 60) << "of 2000";
}

// Looked at again and again, as a job is, for a day.
TEST(SecondsToMiss, OfNoiseThatLastsIsSilentMostOfADay) {
  Noise noise(3);
  double wave = 0;
  std::vector<TrendPoint> points;
  int in_a_row = 0;
  int warned = 0;
  for (int i = 0; i < 8640; ++i) {
    wave = 0.7 * wave + noise();
    points.push_back({.seconds = 10.0 * i, .value = 130 + 8 * wave});
    if (points.size() > 30) points.erase(points.begin());
    in_a_row = SecondsToMiss(points, kTime) ? in_a_row + 1 : 0;
    warned += in_a_row == 3 ? 1 : 0;
  }
  EXPECT_LE(warned, 8);
}

TEST(SecondsToMiss, TakesNoJumpForATrend) {
  for (int at = 10; at < 290; at += 10) {
    Noise noise(static_cast<uint64_t>(at));
    const auto points =
        Points(30, [&](double s) { return (s < at ? 100 : 130) + noise(); });
    EXPECT_FALSE(SecondsToMiss(points, kTime).has_value()) << "at " << at;
  }
}

TEST(SecondsToMiss, LooksNoFurtherThanItsHorizon) {
  const auto slow = Points(30, [](double s) { return 100 + 0.01 * s; });
  EXPECT_FALSE(SecondsToMiss(slow, kTime).has_value()) << "78 minutes";
}

TEST(SecondsToMiss, NeedsSomePointsAndAGoalThatIsMet) {
  const auto rises = [](double s) { return 100 + 0.5 * s; };
  EXPECT_FALSE(SecondsToMiss(Points(kFewestTrendPoints - 1, rises), kTime).has_value());
  EXPECT_FALSE(SecondsToMiss(Points(30, rises), kTime).has_value()) << "245 already";
  EXPECT_FALSE(SecondsToMiss({}, kTime).has_value());
}

TEST(SecondsToMiss, IsSilentOfWhatDoesNotChange) {
  EXPECT_FALSE(SecondsToMiss(Points(30, [](double) { return 100.0; }), kTime));
}

}  // namespace
}  // namespace syncline
