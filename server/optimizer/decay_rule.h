// How the options `weight_decay` and `decoupled` pull weights towards zero.
#pragma once

#include <span>

#include "comm/base/options.h"

namespace syncline {

struct DecayRule {
  // REQUIRES: `specs` has both options.
  static DecayRule Of(std::span<const OptionSpec> specs, const OptionValues& values) {
    return {.weight_decay = OptionOr(specs, values, "weight_decay"),
            .decoupled = OptionOr(specs, values, "decoupled") != 0};
  }

  // Returns the factor of the weight that is added to its gradient.
  float L2() const { return static_cast<float>(decoupled ? 0 : weight_decay); }
  // Returns the factor of the weight that is subtracted from it.
  float DecayAt(double learning_rate) const {
    return static_cast<float>(decoupled ? learning_rate * weight_decay : 0);
  }

  double weight_decay = 0;
  bool decoupled = false;
};

}  // namespace syncline
