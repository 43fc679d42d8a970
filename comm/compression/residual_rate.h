// Decides the unit in which a sender keeps what lossy encodings have lost: that of the
// gradient, or that of the weights' change. In the second case it is converted when the
// learning rate changes.
//
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "comm/base/options.h"

namespace syncline {

// Returns whether it is converted. It is under sgd, whose steps are proportional to
// gradients, and under signsgd, for which DeMo defines it so: its momentum adds up rate
// times gradient (Peng et al. 2024, arXiv 2411.19870). It is not if gradients are clipped,
// because the limit applies in the unit of the gradient: as the rate falls, converted
// values would grow beyond the limit and be clipped away, together with the gradient
// beside them. `gradient` holds the job's gradient transforms.
bool ResidualsFollowRate(std::string_view optimizer, const OptionValues& gradient);

}  // namespace syncline
