// Wrappers that every optimizer can have, as options of the job:
//   maximize, as in torch: the optimizer of the negated gradient
//   lookahead_steps k (Zhang et al., 2019, arXiv 1907.08610): after each k-th update
//     slow += lookahead_alpha * (p - slow);  p = slow
//   ema_decay (Polyak and Juditsky, 1992): after each update
//     ema += (1 - ema_decay) * (p - ema)
//   swa_start s, swa_every k (Izmailov et al., 2018, arXiv 1803.05407): after the updates
//     s, s + k, s + 2k, ...  swa = mean of the weights after these updates
//
// Each of the averages has a slot in FP32, like the weights: "lookahead", "ema" or "swa".
// It starts as the weights before the first update. The averages ema and swa use the
// weights after Lookahead, and do not change them. A step that changes no weight (a
// Hessian estimate) is not an update.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> WrapperOptions();
// Checks more than the ranges of the table.
absl::Status CheckWrappers(const OptionValues& values);

// Returns `optimizer` itself if the options ask for no wrapper. REQUIRES: `values` are
// valid.
std::unique_ptr<Optimizer> Wrap(std::unique_ptr<Optimizer> optimizer,
                                const OptionValues& values);

}  // namespace syncline
