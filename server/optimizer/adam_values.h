// The values of the options that Adam and its relatives share.
#pragma once

#include <span>

#include "comm/base/options.h"
#include "server/optimizer/decay_rule.h"

namespace syncline {

struct AdamValues {
  // REQUIRES: `specs` has weight_decay, decoupled, beta1, beta2 and eps.
  static AdamValues Of(std::span<const OptionSpec> specs, const OptionValues& values) {
    return {.decay = DecayRule::Of(specs, values),
            .beta1 = OptionOr(specs, values, "beta1"),
            .beta2 = OptionOr(specs, values, "beta2"),
            .epsilon = OptionOr(specs, values, "eps")};
  }

  DecayRule decay = {};
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
};

}  // namespace syncline
