// Lion (Chen et al., 2023, arXiv 2302.06675), with its decoupled weight decay:
//   p -= lr * weight_decay * p + lr * sign(beta1 * m + (1 - beta1) * g)
//   m = beta2 * m + (1 - beta2) * g
// sign(0) is 0.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> LionOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeLion(const OptionValues& values);

}  // namespace syncline
