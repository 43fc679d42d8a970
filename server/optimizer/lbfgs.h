// L-BFGS (Nocedal, 1980, "Updating quasi-Newton matrices with limited storage") as
// torch.optim.LBFGS(max_iter=1, line_search_fn=None) has it over successive steps, in the
// vector-free form of Chen, Wang and Zhou (2014, "Large-scale L-BFGS using MapReduce").
// All weights of the job are one vector:
//   s = the last step, y = g - the gradient before it; kept as a pair if y.s > 1e-10
//   d = -H g by the two-loop recursion over the last history_size pairs, from y.s / y.y
//   w += lr * d; at the first step d = -g and the rate is lr * min(1, 1 / ||g||_1)
//
// The recursion needs only dot products, in one round per step: the gradient, the last
// step and the previous gradient with all kept vectors. The job's memory keeps the Gram
// matrix of the kept pairs. So the direction is computed as one coefficient for each
// vector, the same on every shard.
//
// Unlike torch, tolerance_grad is compared with the norm of the gradient (never below its
// largest element), and a direction that does not descend by tolerance_change changes
// no weights and adds no pair. Gradients must be of the whole data or change slowly; a
// parameter group can be frozen, but have no options of its own.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> LbfgsOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeLbfgs(const OptionValues& values);

}  // namespace syncline
