// What the coordinator tells all members of a job about the slowest of them.
#pragma once

#include <cstdint>
#include <optional>

namespace syncline {

// Sent only when it changes, and at most about once in ten seconds
// (coordinator_slowest.cc).
struct SlowestWorker {
  // The worker that the others wait for. Empty: none, or it is not known.
  std::optional<uint32_t> rank = std::nullopt;
};

}  // namespace syncline
