// Sophia-G (Liu et al., 2023, arXiv 2305.14342): the step is clipped where the estimated
// curvature is small. Contributions alternate: one gradient for labels that the worker
// samples from the model's own output (the Gauss-Newton-Bartlett estimate), then
// `hessian_interval` ordinary ones.
//   sampled:   h = beta2 * h + (1 - beta2) * samples * g^2
//   ordinary:  m = beta1 * m + (1 - beta1) * g
//              p -= lr * weight_decay * p + lr * clip(m / max(rho * h, 1e-15), -1, 1)
// The authors' code keeps h without `samples` and multiplies it in at every step, as the
// option `bs`. With a batch that never changes both are the same; here each estimate is
// scaled by its own batch, as the paper's equation 12 has it, and bs is not an option.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> SophiaOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeSophia(const OptionValues& values);

}  // namespace syncline
