// SGD with momentum as torch.optim.SGD has it (Sutskever et al., 2013, in torch's form):
//   g += weight_decay * p
//   b = g at the first step, later momentum * b + (1 - dampening) * g
//   d = g without momentum, b with it, g + momentum * b with Nesterov
//   p -= lr * d
// Decoupled decay: p -= lr * weight_decay * p instead of the first line. With `replace`:
// p = -lr * g, independent of p. A job uses this if servers only average gradients, and
// workers apply an optimizer of their own. With momentum_every above 1 it is another
// optimizer: delayed_nesterov.h.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> SgdOptions();
// Checks more than the ranges of the table.
absl::Status CheckSgd(const OptionValues& values);

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeSgd(const OptionValues& values);

}  // namespace syncline
