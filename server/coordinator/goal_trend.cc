#include "server/coordinator/goal_trend.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace syncline {
namespace {

constexpr double kSureErrors = 3;
constexpr double kHalfErrors = 2;
constexpr double kMaxAutocorrelation = 0.9;

// Least squares: value = mean + slope (seconds - mean_seconds).
struct Line {
  double mean_seconds = 0;
  double mean = 0;
  double slope = 0;
  double slope_error = 0;  // standard errors
  double mean_error = 0;

  double At(double seconds) const { return mean + slope * (seconds - mean_seconds); }
  double ErrorAt(double seconds) const {
    return std::hypot(mean_error, slope_error * (seconds - mean_seconds));
  }
};

Line Fit(std::span<const TrendPoint> points) {
  const auto n = static_cast<double>(points.size());
  Line line;
  for (const TrendPoint& point : points) {
    line.mean_seconds += point.seconds / n;
    line.mean += point.value / n;
  }
  double xx = 0;
  double xy = 0;
  for (const TrendPoint& point : points) {
    const double x = point.seconds - line.mean_seconds;
    xx += x * x;
    xy += x * (point.value - line.mean);
  }
  line.slope = xx > 0 ? xy / xx : 0;
  double residuals = 0;
  double products = 0;  // sum of the products of neighbouring residuals
  double last = 0;
  for (const TrendPoint& point : points) {
    const double off = point.value - line.At(point.seconds);
    residuals += off * off;
    products += off * std::exchange(last, off);
  }
  // Noise that lasts over several windows is modelled as an AR(1) process with this
  // coefficient. Then n windows say as much as n (1 - r) / (1 + r) independent ones.
  const double r =
      residuals > 0 ? std::clamp(products / residuals, 0.0, kMaxAutocorrelation) : 0;
  const double variance = residuals / (n - 2) * (1 + r) / (1 - r);
  line.slope_error = xx > 0 ? std::sqrt(variance / xx) : 0;
  line.mean_error = std::sqrt(variance / n);
  return line;
}

}  // namespace

std::optional<double> SecondsToMiss(std::span<const TrendPoint> points,
                                    const Goal& goal) {
  if (points.size() < kFewestTrendPoints) return std::nullopt;
  // Signs are chosen so that up is towards the limit.
  const double up = goal.IsAtLeast() ? -1 : 1;
  const Line line = Fit(points);
  const double now = points.back().seconds;
  if (!(line.slope * up > 0) || !goal.IsMetBy(line.At(now))) return std::nullopt;
  const double horizon = now + kTrendHorizonSeconds;
  const double least = line.At(horizon) - up * kSureErrors * line.ErrorAt(horizon);
  if (goal.IsMetBy(least)) return std::nullopt;
  const size_t half = points.size() / 2;
  for (const Line& part : {Fit(points.first(half)), Fit(points.last(half))}) {
    if (!(part.slope * up > kHalfErrors * part.slope_error)) return std::nullopt;
  }
  return (goal.limit - line.At(now)) / line.slope;
}

}  // namespace syncline
