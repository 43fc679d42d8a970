// "500 steps" or "10 min": when servers save a job.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

// At most one of both is not zero.
struct CheckpointEvery {
  uint64_t steps = 0;  // 0: not by steps
  double seconds = 0;  // 0: not by time

  bool operator==(const CheckpointEvery&) const = default;
  bool IsScheduled() const { return steps > 0 || seconds > 0; }
  // Whether anybody could mean it: what came in a message may be a NaN, or negative.
  bool IsInRange() const;
};

// Empty: never. InvalidArgument shows what may be written.
absl::StatusOr<CheckpointEvery> ParseCheckpointEvery(std::string_view text);
// As ParseCheckpointEvery reads it, in the largest unit that needs no fraction.
std::string FormatCheckpointEvery(const CheckpointEvery& every);

}  // namespace syncline
