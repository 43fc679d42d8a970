// How often servers save a job: "500 steps" or "10 min".
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

// At most one of the fields is not zero.
struct CheckpointEvery {
  uint64_t steps = 0;  // 0: not by steps
  double seconds = 0;  // 0: not by time

  bool operator==(const CheckpointEvery&) const = default;
  bool IsScheduled() const { return steps > 0 || seconds > 0; }
  // Returns true if the values are valid. Values from a message may be NaN or negative.
  bool IsInRange() const;
};

// Parses the text; empty means never. InvalidArgument shows the allowed forms.
absl::StatusOr<CheckpointEvery> ParseCheckpointEvery(std::string_view text);
// Returns the text for ParseCheckpointEvery, in the largest unit that needs no fraction.
std::string FormatCheckpointEvery(const CheckpointEvery& every);

}  // namespace syncline
