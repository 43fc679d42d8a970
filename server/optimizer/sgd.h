// SGD with momentum as torch.optim.SGD has it (Sutskever et al., 2013, in torch's form):
//   g += weight_decay * p;  b = g at the first step, momentum * b + (1 - dampening) * g
//   later;  d = g without momentum, b with it, g + momentum * b with Nesterov;
//   p -= lr * d.  Decoupled decay: p -= lr * weight_decay * p instead of the first line.
// With `replace`: p = -lr * g, whatever p was. Of servers that only average gradients, for
// workers that step themselves.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> SgdOptions();
absl::Status CheckSgd(const OptionValues& values);  // what the table cannot say

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeSgd(const OptionValues& values);

}  // namespace syncline
