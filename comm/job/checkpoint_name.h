// Names of checkpoints, such as "run2-step500", and the values of the setting `resume`.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace syncline {

struct CheckpointName {
  uint32_t run = 0;
  uint64_t step = 0;

  std::string ToString() const;  // "run2-step500"
  static std::optional<CheckpointName> Parse(const std::string& name);

  bool operator==(const CheckpointName&) const = default;
  bool operator<(const CheckpointName& other) const {
    return run != other.run ? run < other.run : step < other.step;
  }
};

// Returns OK for "auto" (the latest checkpoint, if any), "latest", "never", and a
// checkpoint's name. InvalidArgument lists them.
absl::Status CheckResume(const std::string& resume);

}  // namespace syncline
