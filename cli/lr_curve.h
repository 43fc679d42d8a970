// Evaluates the losses of a learning-rate range test (Smith, 2015, arXiv 1506.01186).
// Pure functions.
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

// A smoothed curve in ascending order of learning rates (exponential, 0.9, bias
// corrected). Ends where the loss exceeds four times its minimum: the training has
// diverged.
struct LossCurve {
  std::vector<LossAtRate> points = {};
  std::optional<double> diverged_at = std::nullopt;  // the learning rate
};
LossCurve SmoothCurve(const std::vector<LossAtRate>& raw);

// Learning rates to try. nullopt for a curve of fewer than 10 points, or one that never
// falls.
struct RateAdvice {
  double steepest = 0;       // where the loss falls fastest
  double tenth_of_best = 0;  // a tenth of the rate with the lowest loss
};
std::optional<RateAdvice> AdviseRate(const LossCurve& curve);

// Returns a chart for the terminal, with at most 16 lines, one for each range of rates.
std::string DrawCurve(const LossCurve& curve);

// Checks before the sweep whether WriteCurve can write to `path`. Creates an empty file
// if there is none. Fails with Failure::kUsage for endings other than .csv, .svg and
// .png, and with FailedPrecondition when gnuplot is missing.
absl::Status CheckCurvePath(const std::string& path);

// Writes "learning_rate,loss" lines, or with gnuplot a picture when the name ends in .svg
// or .png. Fails with FailedPrecondition when gnuplot fails, and with PermissionDenied
// when the file cannot be written.
absl::Status WriteCurve(const LossCurve& curve, const std::optional<RateAdvice>& advice,
                        const std::string& path);

}  // namespace syncline
