// Converts a worker's step durations (comm/base/step_durations.h) to and from a message.
// Input from members is not trusted: parts that do not exist are ignored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "comm/base/step_durations.h"
#include "proto/coordinator.pb.h"

namespace syncline {

inline void WriteFigures(const StepDurations& durations, uint64_t samples,
                         v1::StepFigures& out) {
  out.set_samples(samples);
  for (const auto& [part, count] : durations.counts()) {
    out.add_parts(part);
    out.add_counts(count);
  }
  out.set_microseconds(static_cast<uint64_t>(absl::ToInt64Microseconds(durations.sum())));
}

inline StepDurations ReadDurations(const v1::StepFigures& in) {
  StepDurations::Counts counts;
  const int known = std::min(in.parts_size(), in.counts_size());
  for (int i = 0; i < known; ++i) counts[in.parts(i)] = in.counts(i);
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return {counts,
          absl::Microseconds(static_cast<int64_t>(std::min(in.microseconds(), kMost)))};
}

}  // namespace syncline
