// LARS (You, Gitman and Ginsburg, 2017, arXiv 1708.03888) as Apex LARC (without its
// clipping) and timm have it: SGD whose rate follows the norms of each tensor.
//   r = trust_coefficient * ||p|| / (||g|| + weight_decay * ||p|| + eps)
//       if ||p|| and ||g|| are above 0, otherwise 1
//   d = r * (g + weight_decay * p);  b = momentum * b + d
//   p -= lr * d without momentum, lr * b with it, lr * (d + momentum * b) with Nesterov
// Tensors of fewer than two dimensions (biases, scales of norms) take plain steps without
// decay, unless exclude_1d is 0.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> LarsOptions();
// Checks more than the ranges of the table.
absl::Status CheckLars(const OptionValues& values);

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeLars(const OptionValues& values);

}  // namespace syncline
