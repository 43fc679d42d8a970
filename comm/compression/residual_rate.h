// In which unit a sender keeps what lossy encodings have lost: of the gradient, or of the
// weights' change, so that it is converted when the learning rate changes.
//
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "comm/base/options.h"

namespace syncline {

// Whether it is converted: under sgd, whose steps are proportional to gradients, unless
// gradients are clipped. A limit is judged in the unit of the gradient: as the rate falls,
// kept values that follow it would grow beyond the limit and be clipped away, together with
// the gradient beside them. `gradient` are the job's gradient transforms.
bool ResidualsFollowRate(std::string_view optimizer, const OptionValues& gradient);

}  // namespace syncline
