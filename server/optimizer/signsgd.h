// signSGD (Bernstein et al. 2018, arXiv 1802.04434), with decoupled weight decay:
//   p -= lr * weight_decay * p + lr * sign(g)
// sign(0) is 0, and so is that of NaN, as in torch. With the push codec `demo` it is DeMo
// (Peng et al. 2024, arXiv 2411.19870): g is then what workers sent of their momenta.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> SignSgdOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeSignSgd(const OptionValues& values);

}  // namespace syncline
