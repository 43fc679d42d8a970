// Dynamic loss scaling: FP16 gradients are computed of `scale` times the loss, so that
// small ones do not vanish; a gradient that is not finite lowers the scale, a long run of
// finite ones raises it (Micikevicius et al., 2017, arXiv 1710.03740). A state machine of
// three words.
//
// The presets follow their namesakes' semantics and defaults:
//   torch      torch.amp.GradScaler: an overflow halves, 2000 clean steps double
//   deepspeed  DynamicLossScaler: 1000 clean steps;
//              of `hysteresis` = 2 overflows the first
//              is forgiven once; never below min_scale 1
//   apex       amp.LossScaler: as torch, with a ceiling of 2^24
// DeepSpeed ends the run when the scale would fall below its minimum. We keep the minimum
// and go on skipping, and `status` counts the skipped steps: whoever trains decides.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "comm/base/options.h"

namespace syncline {

struct LossScalerState {
  float scale = 1;
  int32_t growth_tracker = 0;  // clean steps since the last overflow or growth
  int32_t hysteresis = 1;      // overflows until the scale falls
};

std::span<const std::string_view> LossScalingPresets();
// The preset's options with its defaults. REQUIRES: a name of LossScalingPresets().
std::span<const OptionSpec> LossScalingOptionsOf(std::string_view preset);

// InvalidArgument names the nearest preset or option, or the allowed range.
absl::Status ValidateLossScaling(const NamedOptions& scaling);

// REQUIRES: valid settings, for both.
LossScalerState StartLossScaling(const NamedOptions& scaling);
enum class Gradients { kFinite, kNotFinite };
LossScalerState AdvanceLossScaling(const NamedOptions& scaling,
                                   const LossScalerState& state, Gradients gradients);

}  // namespace syncline
