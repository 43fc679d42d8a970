// NAdam (Dozat, 2016, "Incorporating Nesterov Momentum into Adam") as torch.optim.NAdam
// has it:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   u(t) = beta1 * (1 - 0.96^(t * momentum_decay) / 2);  U(t) = u(1) * ... * u(t)
//   p -= lr * ((1 - u(t)) / (1 - U(t)) * g + u(t + 1) / (1 - U(t + 1)) * m)
//           / (sqrt(v / (1 - beta2^t)) + eps)
// torch keeps U in a variable of FP32; here it is computed from t, in float64.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> NAdamOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeNAdam(const OptionValues& values);

}  // namespace syncline
