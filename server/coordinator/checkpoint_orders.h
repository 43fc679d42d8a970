// Orders of the coordinator about checkpoints, and their answers. The shell carries out
// the orders on a thread of its own, one after the other (server/service).
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

// Finds the checkpoint that a job begins with. Answer: CheckpointFound.
struct FindCheckpoint {
  uint32_t job = 0;
  std::string name = {};
  std::string resume = {};  // see FindBeginning
};
// All servers have written. Completes the checkpoint by writing its manifest, then
// deletes old ones. Answer: CheckpointKept.
struct KeepCheckpoint {
  uint32_t job = 0;
  Manifest manifest = {};  // without tensors, which are in `declared`
  std::shared_ptr<const DeclaredJob> declared = {};
  // Number of checkpoints to keep.
  uint32_t keep = 1;
};
// Deletes the files of a checkpoint that some server could not write. Has no answer.
struct DiscardCheckpoint {
  std::string job = {};
  CheckpointName name = {};
};
// Has no effect. Its answer, CheckpointsSettled, says that all earlier orders have been
// carried out.
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
