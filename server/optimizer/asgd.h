// Averaged stochastic gradient descent (Polyak and Juditsky, 1992, "Acceleration of
// stochastic approximation by averaging") as torch.optim.ASGD has it:
//   eta = lr / (1 + lambd * lr * (t - 1))^alpha
//   p -= lambd * eta * p + eta * g
//   a += (p - a) / max(1, t - 1 - t0)
// The average a equals the weights until t0 steps are over. It can only be read as
// optimizer state. eta uses the learning rate of its own step. torch computes eta a step
// earlier, so its eta would lag behind a schedule by one step.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> AsgdOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeAsgd(const OptionValues& values);

}  // namespace syncline
