// The server's half of 0/1 Adam (Lu et al., 2022, arXiv 2202.06009), with the options of
// DeepSpeed's ZeroOneAdam. It is Adam without bias correction (uncorrected_adam.h). The
// variance is updated more and more rarely, and is constant from `var_freeze_step` on.
// From then on workers make a growing number of local steps, and push the mean of the
// momenta of these steps. One update stands for all of them:
//   m = mean of contributions;  p -= local_steps * lr * (m / (sqrt(v) + eps) + decay * p)
//
// The times of all this are a pure function of the number of the update, so workers and
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

// Whether update t (from 1) changes the variance. It does at multiples of an interval,
// which is 1 at first and doubles after every `var_update_scaler` of these updates.
bool UpdatesVariance(const ZeroOneSchedule& schedule, uint64_t t);

// Number of local steps that update t stands for. It is 1 until var_freeze_step. Then it
// doubles with the first update after every `local_step_scaler` local steps, up to
// `local_step_clipper`.
uint64_t LocalSteps(const ZeroOneSchedule& schedule, uint64_t t);

std::span<const OptionSpec> ZeroOneAdamOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeZeroOneAdam(const OptionValues& values);

}  // namespace syncline
