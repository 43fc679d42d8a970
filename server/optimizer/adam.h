// Adam (Kingma and Ba, 2014, arXiv 1412.6980) and AdamW (Loshchilov and Hutter, 2017,
// arXiv 1711.05101) as torch.optim has them: one kernel, which `decoupled` selects.
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   p -= lr * decay * p + lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
// `amsgrad` (Reddi, Kale and Kumar, 2018, arXiv 1904.09237) puts the greatest v so far in
// the place of v; as in torch, before the division by 1 - beta2^t.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> AdamOptions();
std::span<const OptionSpec> AdamWOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeAdam(const OptionValues& values);
std::unique_ptr<Optimizer> MakeAdamW(const OptionValues& values);

}  // namespace syncline
