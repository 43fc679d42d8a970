// Averaged stochastic gradient descent (Polyak and Juditsky, 1992, "Acceleration of
// stochastic approximation by averaging") as torch.optim.ASGD has it:
//   eta = lr / (1 + lambd * lr * (t - 1))^alpha
//   p -= lambd * eta * p + eta * g
//   a += (p - a) / max(1, t - 1 - t0)
// The average a follows the weights until t0 steps are over; nothing reads it but whoever
// asks for the optimizer's state. eta follows the rate of its own step, where torch's,
// computed a step before, would be one change of a schedule behind.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> AsgdOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeAsgd(const OptionValues& values);

}  // namespace syncline
