// SGD with momentum as torch.optim.SGD has it (Sutskever et al., 2013, in torch's form):
//   g += weight_decay * p;  b = g at the first step, momentum * b + (1 - dampening) * g
//   later; d = g without momentum, b with it, g + momentum * b with Nesterov;  p -=
//   learning_rate * d
#pragma once

#include <memory>

#include "server/optimizer/optimizer.h"

namespace syncline {

// REQUIRES: ValidateSettings(settings).ok()
std::unique_ptr<Optimizer> MakeSgd(const OptimizerSettings& settings);

}  // namespace syncline
