// "500 steps" or "10 min": when servers save a job.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncline {

// At most one of both is not zero.
struct CheckpointEvery {
  uint64_t steps = 0;
  absl::Duration time = absl::ZeroDuration();

  bool operator==(const CheckpointEvery&) const = default;
};

// Empty: never. InvalidArgument shows what may be written.
absl::StatusOr<CheckpointEvery> ParseCheckpointEvery(std::string_view text);

}  // namespace syncline
