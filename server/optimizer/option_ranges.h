// Ranges that options of several optimizers share.
#pragma once

#include "comm/base/options.h"

namespace syncline {

// Beyond 1e6 a rate is a mistyped exponent, and float overflow is near.
inline constexpr double kMostRate = 1e6;
// Below 1e-30 it would vanish in FP32, and 0/0 follow for a gradient that is always zero.
inline constexpr double kLeastEpsilon = 1e-30;

constexpr OptionSpec LearningRate(double standard) {
  return {.name = "lr",
          .standard = standard,
          .most = kMostRate,
          .meaning = "learning rate, before the schedule"};
}
constexpr OptionSpec WeightDecay(double standard) {
  return {.name = "weight_decay",
          .standard = standard,
          .most = kMostRate,
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
