// The server's half of 0/1 Adam (Lu et al., 2022, arXiv 2202.06009), with DeepSpeed's
// ZeroOneAdam's options: Adam without bias correction (uncorrected_adam.h), whose
// variance follows the gradient ever more rarely and stays from `var_freeze_step` on.
// From there workers take local steps, ever more of them, and push the mean of the
// momenta of these steps; one update makes up for all:
//   m = mean of contributions;  p -= local_steps * lr * (m / (sqrt(v) + eps) + decay * p)
//
// What happens when is a pure function of the number of the update, so that workers and
// servers agree without a message.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

struct ZeroOneSchedule {
  uint64_t var_freeze_step = 100000;
  uint64_t var_update_scaler = 16;
  uint64_t local_step_scaler = 32678;
  uint64_t local_step_clipper = 16;
};

// Whether the variance follows the gradient at update t (from 1): at multiples of an
// interval that begins as 1 and doubles after each `var_update_scaler` of these updates.
bool UpdatesVariance(const ZeroOneSchedule& schedule, uint64_t t);

// Local steps that update t stands for: 1 until var_freeze_step; then the number doubles
// with the first update after each `local_step_scaler` local steps, up to
// `local_step_clipper`.
uint64_t LocalSteps(const ZeroOneSchedule& schedule, uint64_t t);

std::span<const OptionSpec> ZeroOneAdamOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeZeroOneAdam(const OptionValues& values);

}  // namespace syncline
