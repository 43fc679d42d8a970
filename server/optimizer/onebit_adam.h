// The server's half of 1-bit Adam (Tang et al., 2021, arXiv 2102.02888), as DeepSpeed's
// OnebitAdam: Adam without bias correction (uncorrected_adam.h) until `freeze_step`
// updates are done. From then on v stays as it is and workers push momenta
//   m_i = beta1 * m + (1 - beta1) * g_i,
// which survive a one-bit codec with error feedback. The server uses their mean as m.
#pragma once

#include <memory>
#include <span>

#include "server/optimizer/optimizer.h"

namespace syncline {

std::span<const OptionSpec> OnebitAdamOptions();

// REQUIRES: `values` are valid.
std::unique_ptr<Optimizer> MakeOnebitAdam(const OptionValues& values);

}  // namespace syncline
