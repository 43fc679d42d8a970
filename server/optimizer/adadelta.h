// Adadelta (Zeiler, 2012, arXiv 1212.5701, algorithm 1) as torch.optim.Adadelta has it:
//   v = rho * v + (1 - rho) * g^2
//   d = sqrt(u + eps) / sqrt(v + eps) * g
//   u = rho * u + (1 - rho) * d^2
//   p -= lr * d
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> AdadeltaOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeAdadelta(const OptionValues& values);

}  // namespace syncline
