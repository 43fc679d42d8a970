// AdaMax (Kingma and Ba, 2014, arXiv 1412.6980, section 7.1) as torch.optim.Adamax has
// it: Adam with a decaying maximum of the gradient in place of the root of the mean
// square.
//   m = beta1 * m + (1 - beta1) * g
//   u = max(beta2 * u, |g| + eps)
//   p -= lr / (1 - beta1^t) * m / u
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> AdamaxOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeAdamax(const OptionValues& values);

}  // namespace syncline
