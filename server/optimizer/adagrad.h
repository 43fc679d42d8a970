// Adagrad (Duchi, Hazan and Singer, JMLR 2011) as torch.optim.Adagrad has it:
//   s = s + g^2, from initial_accumulator_value
//   p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> AdagradOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeAdagrad(const OptionValues& values);

}  // namespace syncline
