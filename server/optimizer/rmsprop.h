// RMSprop (Tieleman and Hinton, 2012, lecture 6e) as torch.optim.RMSprop has it; the
// centred form is of Graves, 2013, arXiv 1308.0850.
//   s = alpha * s + (1 - alpha) * g^2;  a = sqrt(s) + eps
//   centered: m = alpha * m + (1 - alpha) * g;  a = sqrt(s - m^2) + eps
//   p -= lr * g / a, with momentum b = momentum * b + g / a;  p -= lr * b
// If rounding makes s - m^2 negative, it counts as 0; torch computes NaN.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> RmspropOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeRmsprop(const OptionValues& values);

}  // namespace syncline
