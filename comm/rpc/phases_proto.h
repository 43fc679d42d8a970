// Converts step phases (comm/base/step_phases.h) to and from messages. Input from members
// is not trusted: invalid seconds count as zero, and unknown phases of later versions are
// ignored.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "comm/base/step_phases.h"
#include "proto/coordinator.pb.h"

namespace syncline {

template <size_t kPhases>
void WritePhases(const PhaseSums<kPhases>& sums, v1::PhaseSums& out) {
  out.set_steps(sums.steps);
  for (const double seconds : sums.seconds) out.add_seconds(seconds);
}

template <typename Sums>
Sums ReadPhases(const v1::PhaseSums& message) {
  Sums sums{.steps = message.steps()};
  const size_t known =
      std::min(sums.seconds.size(), static_cast<size_t>(message.seconds_size()));
  for (size_t i = 0; i < known; ++i) {
    const double seconds = message.seconds(static_cast<int>(i));
    if (std::isfinite(seconds) && seconds > 0) sums.seconds[i] = seconds;
  }
  return sums;
}

}  // namespace syncline
