// The manifest of a checkpoint says which files belong to it, and holds the job's state
// beside its tensors. It is written last: a checkpoint without a manifest is not
// complete.
//
//   DIR/JOB/run2-step500/manifest.json
//   DIR/JOB/run2-step500/weights-00000.safetensors  (one for each shard that had blocks)
//   DIR/JOB/run2-step500/state-00000.safetensors
//
// A run of a job begins when its workers start, and each run has the next number.
// Checkpoints of a job are therefore in order by run and step, even if the job went back
// to an earlier one.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/job/checkpoint_name.h"
#include "server/optimizer/loss_scaler.h"
#include "server/optimizer/training.h"

namespace syncline {

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr int kCheckpointFormat = 1;

// Returns the folder of a job's checkpoints: the job's name, with characters that file
// names cannot have written as %XX. A name that would be too long ends with a hash.
std::string FolderOf(const std::string& job);
std::string FolderOf(const std::string& job, const CheckpointName& name);

struct CheckpointFile {
  std::string name = {};  // in the checkpoint's folder, or "parts/..." if shared
  uint64_t bytes = 0;
  // Size of the safetensors head. The entries behind it have checksums of their own.
  uint64_t head_bytes = 0;
  uint32_t head_crc32c = 0;

  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointTensor {
  std::string name = {};
  std::vector<uint64_t> shape = {};
  bool frozen = false;

  bool operator==(const CheckpointTensor&) const = default;
};

struct Manifest {
  std::string job = {};
  CheckpointName name = {};
  std::string push_codec = {};
  std::string publish_codec = {};
  TrainingSettings declared = {};  // as the workers declared them
  TrainingSettings training = {};  // in effect at this step, changes included
  LossScalerState loss_scaler = {};
  uint64_t skipped_steps = 0;
  std::vector<CheckpointTensor> tensors = {};
  std::vector<CheckpointFile> files = {};

  uint64_t bytes() const;  // of all files
};

std::string WriteManifest(const Manifest& manifest);
// Fails with DataLoss if the text is damaged, and with FailedPrecondition if its format
// is newer than this program.
absl::StatusOr<Manifest> ParseManifest(const std::string& json);

}  // namespace syncline
