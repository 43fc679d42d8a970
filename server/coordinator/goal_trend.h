// Predicts whether a goal that is met now will be missed soon, if its value goes on
// changing as it did.
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

// Returns the seconds from the last point until the least-squares line through all points
// crosses the goal's limit. Returns nothing if the line does not cross within the
// horizon, or if that may be chance. So the line less three standard errors must cross
// too, and each half of the points alone must rise by more than two standard errors of
// its slope. A jump between two levels is no trend, because one half is flat.
std::optional<double> SecondsToMiss(std::span<const TrendPoint> points, const Goal& goal);

}  // namespace syncline
