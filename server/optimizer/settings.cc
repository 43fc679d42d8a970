#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"
#include "server/optimizer/optimizer.h"

namespace syncline {
namespace {

enum class Upper { kIncluded, kExcluded };

struct Range {
  double least;
  double most;
  Upper upper = Upper::kIncluded;
};

// Beyond 1e6 it is a mistyped exponent, and float overflow is near.
constexpr Range kLearningRate = {0, 1e6};
constexpr Range kWeightDecay = {0, 1e6};
constexpr Range kBelowOne = {0, 1, Upper::kExcluded};
constexpr Range kUpToOne = {0, 1};
// Below 1e-30 it would vanish in FP32, and 0/0 follow for a gradient that is always zero.
constexpr Range kEpsilon = {1e-30, 1};

absl::Status CheckRange(absl::string_view option, double value, const Range& range) {
  const bool below =
      range.upper == Upper::kExcluded ? value < range.most : value <= range.most;
  if (value >= range.least && below) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is ", value, ", but must be in [", range.least, ", ",
                   range.most, range.upper == Upper::kExcluded ? ")" : "]"));
}

}  // namespace

absl::Status ValidateSettings(const OptimizerSettings& settings) {
  const auto names = OptimizerNames();
  if (std::find(names.begin(), names.end(), settings.name) == names.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown optimizer '", settings.name, "'; did you mean '",
                     std::string(NearestName(settings.name, names)), "'?"));
  }
  SYNCLINE_RETURN_IF_ERROR(
      CheckRange("learning_rate", settings.learning_rate, kLearningRate));
  SYNCLINE_RETURN_IF_ERROR(
      CheckRange("weight_decay", settings.weight_decay, kWeightDecay));
  SYNCLINE_RETURN_IF_ERROR(CheckRange("momentum", settings.momentum, kBelowOne));
  SYNCLINE_RETURN_IF_ERROR(CheckRange("dampening", settings.dampening, kUpToOne));
  SYNCLINE_RETURN_IF_ERROR(CheckRange("beta1", settings.beta1, kBelowOne));
  SYNCLINE_RETURN_IF_ERROR(CheckRange("beta2", settings.beta2, kBelowOne));
  SYNCLINE_RETURN_IF_ERROR(CheckRange("epsilon", settings.epsilon, kEpsilon));
  if (settings.nesterov == Nesterov::kOn &&
      (settings.momentum == 0 || settings.dampening != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("nesterov needs momentum above 0 and dampening 0, but momentum is ",
                     settings.momentum, " and dampening ", settings.dampening));
  }
  return absl::OkStatus();
}

absl::Status ValidateGroup(const GroupOptions& group) {
  SYNCLINE_RETURN_IF_ERROR(
      CheckRange("learning_rate_scale", group.learning_rate_scale, kLearningRate));
  return CheckRange("weight_decay", group.weight_decay.value_or(0), kWeightDecay);
}

StepScalars ScalarsFor(const OptimizerSettings& settings, const GroupOptions& group,
                       uint64_t step) {
  return {.step = step,
          .learning_rate = settings.learning_rate * group.learning_rate_scale,
          .weight_decay = group.weight_decay.value_or(settings.weight_decay)};
}

}  // namespace syncline
