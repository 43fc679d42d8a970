// LAMB (You et al., 2019, arXiv 1904.00962) as Apex FusedLAMB and timm have it: Adam's
// direction, with a step as long as each tensor's weights allow.
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * p
//   r = ||p|| / ||u|| if both are above 0, else 1
//   p -= lr * r * u
// Without weight decay r is 1, unless always_adapt is set. Apex also clips the gradient
// of the whole job to a norm of 1: set the job's clip_global_norm for that.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> LambOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeLamb(const OptionValues& values);

}  // namespace syncline
