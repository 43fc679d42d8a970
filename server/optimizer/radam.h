// RAdam (Liu et al., 2019, arXiv 1908.03265) as torch.optim.RAdam has it:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   rho = 2 / (1 - beta2) - 1;  rho(t) = rho - 2 t * beta2^t / (1 - beta2^t)
//   r(t) = sqrt((rho(t) - 4) (rho(t) - 2) rho / ((rho - 4) (rho - 2) rho(t)))
//   rho(t) > 5: p -= lr / (1 - beta1^t) * r(t) * sqrt(1 - beta2^t) * m / (sqrt(v) + eps)
//   before:     p -= lr / (1 - beta1^t) * m
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> RAdamOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeRAdam(const OptionValues& values);

}  // namespace syncline
