// AdamW (Loshchilov and Hutter, 2019, algorithm 2) as torch.optim.AdamW has it:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   p -= lr * weight_decay * p + lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) +
//   epsilon)
#pragma once

#include <memory>

#include "server/optimizer/optimizer.h"

namespace syncline {

// REQUIRES: ValidateSettings(settings).ok()
std::unique_ptr<Optimizer> MakeAdamW(const OptimizerSettings& settings);

}  // namespace syncline
