// Whether a goal that is met now will be missed soon, if what it is about goes on as it did.
//
// Thread safety: pure function.
#pragma once

#include <optional>
#include <span>

#include "comm/job/goals.h"

namespace syncline {

struct TrendPoint {
  double seconds = 0;  // ascending
  double value = 0;
};

inline constexpr size_t kFewestTrendPoints = 16;
inline constexpr double kTrendHorizonSeconds = 15 * 60;

// After the last point, seconds until the line through all of them (least squares) crosses
// the goal's limit. None when it does not within the horizon, and when that may be chance:
// the line less three of its standard errors must cross too, and each half of the points by
// itself must go the same way, by two standard errors of its slope. A jump from one level to
// another is no trend: one half is flat.
std::optional<double> SecondsToMiss(std::span<const TrendPoint> points, const Goal& goal);

}  // namespace syncline
