// Rprop (Riedmiller and Braun, 1993, "A direct adaptive method for faster backpropagation
// learning: the RPROP algorithm") as torch.optim.Rprop has it. Each weight has a step of
// its own, lr at first, and only signs of the gradient count:
//   same sign as before:  step = min(step * eta_plus, step_size_max)
//   the other sign:       step = max(step * eta_minus, step_size_min);  g = 0
//   p -= sign(g) * step;  the gradient before = g
// Signs are compared, not multiplied, so that tiny gradients count, too. lr is used at
// the first update only, as in torch: schedules have no effect after it. The gradients
// must be of the whole data.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> RpropOptions();
// Checks more than the ranges of the table.
absl::Status CheckRprop(const OptionValues& values);

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeRprop(const OptionValues& values);

}  // namespace syncline
