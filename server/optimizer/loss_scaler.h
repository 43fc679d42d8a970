// Dynamic loss scaling. FP16 gradients are computed from `scale` times the loss, so that
// small ones do not vanish. A gradient that is not finite lowers the scale, and a long
// run of finite ones raises it (Micikevicius et al., 2017, arXiv 1710.03740). The state
// has three words.
//
// Each preset has the semantics and defaults of the library that it is named after:
//   torch      torch.amp.GradScaler: an overflow halves, 2000 clean steps double
//   deepspeed  DynamicLossScaler: 1000 clean steps double; with `hysteresis` = 2 the
//              first overflow is forgiven once; never below min_scale 1
//   apex       amp.LossScaler: as torch, with a ceiling of 2^24
// DeepSpeed ends the run if the scale would fall below its minimum. Here the scale stays
// at the minimum and steps are still skipped. `syncline status` counts them, so that the
// user can decide.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "comm/base/options.h"

namespace syncline {

struct LossScalerState {
  float scale = 1;             // factor of the loss
  int32_t growth_tracker = 0;  // number of clean steps since the last overflow or growth
  int32_t hysteresis = 1;      // number of overflows until the scale falls
};

std::span<const std::string_view> LossScalingPresets();
// Returns the preset's options with its defaults. REQUIRES: one of LossScalingPresets().
std::span<const OptionSpec> LossScalingOptionsOf(std::string_view preset);

// Fails with InvalidArgument, which suggests the nearest preset or option, or names the
// allowed range.
absl::Status ValidateLossScaling(const NamedOptions& scaling);

// Returns the state before the first step. REQUIRES: valid settings.
LossScalerState StartLossScaling(const NamedOptions& scaling);
enum class Gradients { kFinite, kNotFinite };
// Returns the state after a step with such gradients. REQUIRES: valid settings.
LossScalerState AdvanceLossScaling(const NamedOptions& scaling,
                                   const LossScalerState& state, Gradients gradients);

}  // namespace syncline
