// What the losses of a learning-rate range test say (Smith, 2015, arXiv 1506.01186): pure
// functions of the curve.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace syncline {

struct LossAtRate {
  double learning_rate = 0;
  double loss = 0;
};

// Ascending learning rates. Losses are smoothed (exponentially, 0.9, bias corrected), and
// what follows the point where they exceed four times their minimum is cut off: the
// training has diverged.
struct LossCurve {
  std::vector<LossAtRate> points = {};
  std::optional<double> diverged_at = std::nullopt;  // the learning rate
};
LossCurve SmoothCurve(const std::vector<LossAtRate>& raw);

// Which learning rates to try. Empty for a curve of less than 10 points, or one that
// never falls.
struct RateAdvice {
  double steepest = 0;       // where the loss falls fastest
  double tenth_of_best = 0;  // a tenth of the rate with the least loss
};
std::optional<RateAdvice> AdviseRate(const LossCurve& curve);

// A chart for the terminal, one line for each of at most 16 ranges of learning rates.
std::string DrawCurve(const LossCurve& curve);

// Whether WriteCurve(..., path) can succeed, as far as it is known before the sweep. Makes
// an empty file where there is none. Failure::kUsage for another ending than .csv, .svg and
// .png, FailedPrecondition where gnuplot is missing.
absl::Status CheckCurvePath(const std::string& path);

// Writes "learning_rate,loss" lines, or a picture when the name ends in .svg or .png,
// which gnuplot draws. FailedPrecondition when gnuplot cannot; PermissionDenied when the
// file cannot be written.
absl::Status WriteCurve(const LossCurve& curve, const std::optional<RateAdvice>& advice,
                        const std::string& path);

}  // namespace syncline
