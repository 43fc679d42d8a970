// What the coordinator wants done with checkpoints, and what came of it. Its shell carries
// it out on a thread of its own, in the order of the orders (server/service).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/manifest.h"
#include "server/coordinator/declared_job.h"

namespace syncline {

// What a job begins with.
struct FindCheckpoint {
  uint32_t job = 0;
  std::string name = {};
  std::string resume = {};  // FindBeginning
};
// All servers have written: the manifest makes it complete, then earlier ones may go.
struct KeepCheckpoint {
  uint32_t job = 0;
  Manifest manifest = {};  // without tensors: those of `declared`
  std::shared_ptr<const DeclaredJob> declared = {};
  uint32_t keep = 1;
};
// Some server could not write. Is not answered.
struct DiscardCheckpoint {
  std::string job = {};
  CheckpointName name = {};
};
// Is answered when all orders before it are carried out.
struct SettleCheckpoints {
  uint32_t job = 0;
};
using CheckpointOrder =
    std::variant<FindCheckpoint, KeepCheckpoint, DiscardCheckpoint, SettleCheckpoints>;

struct CheckpointFound {
  uint32_t job = 0;
  absl::StatusOr<Beginning> beginning = Beginning();
};
struct CheckpointKept {
  uint32_t job = 0;
  CheckpointName name = {};
  absl::Status status = {};
};
struct CheckpointsSettled {
  uint32_t job = 0;
};
using CheckpointAnswer =
    std::variant<CheckpointFound, CheckpointKept, CheckpointsSettled>;

}  // namespace syncline
