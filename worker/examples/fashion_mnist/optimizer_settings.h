// How the weights are updated, the same for the servers of a job and for torch's
// optimizers.
#pragma once

#include "comm/base/options.h"

namespace syncline::fashion_mnist {

struct OptimizerSettings {
  NamedOptions optimizer = {.name = "adamw",
                            .values = {{"lr", 1.5e-3}, {"weight_decay", 0.01}}};
  NamedOptions schedule = {.name = "constant"};
  OptionValues gradient = {};  // clip_global_norm and the like

  double option(std::string_view name, double standard) const {
    const auto found = optimizer.values.find(name);
    return found == optimizer.values.end() ? standard : found->second;
  }
};

}  // namespace syncline::fashion_mnist
