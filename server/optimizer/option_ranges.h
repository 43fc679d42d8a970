// Ranges that options of several optimizers share.
#pragma once

#include "comm/base/options.h"

namespace syncline {

// A rate above 1e6 is probably a mistyped exponent, and close to float overflow.
inline constexpr double kMaxRate = 1e6;
// Below 1e-30 it would vanish in FP32, and a gradient that is always zero would give 0/0.
inline constexpr double kLeastEpsilon = 1e-30;

constexpr OptionSpec LearningRate(double standard) {
  return {.name = "lr",
          .standard = standard,
          .most = kMaxRate,
          .meaning = "learning rate, before the schedule"};
}
constexpr OptionSpec WeightDecay(double standard) {
  return {.name = "weight_decay",
          .standard = standard,
          .most = kMaxRate,
          .meaning = "pulls weights towards zero"};
}
constexpr OptionSpec Decoupled(double standard) {
  return {.name = "decoupled",
          .standard = standard,
          .kind = OptionKind::kFlag,
          .meaning =
              "1: decay the weights by lr * weight_decay; 0: add weight_decay * "
              "weight to the gradient"};
}
constexpr OptionSpec Beta(std::string_view name, double standard,
                          std::string_view meaning) {
  return {
      .name = name, .standard = standard, .bound = Bound::kExcluded, .meaning = meaning};
}
constexpr OptionSpec Epsilon(double standard) {
  return {.name = "eps",
          .standard = standard,
          .least = kLeastEpsilon,
          .meaning = "keeps the denominator above zero"};
}

}  // namespace syncline
