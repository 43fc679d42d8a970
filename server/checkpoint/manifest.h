// The manifest of a checkpoint: written last, so that a checkpoint without one is none. It
// says which files belong to it, and what a job has beside its tensors.
//
//   DIR/JOB/run2-step500/manifest.json
//   DIR/JOB/run2-step500/weights-00000.safetensors  (one for each shard that had blocks)
//   DIR/JOB/run2-step500/state-00000.safetensors
//
// A run of a job begins when its workers start; the next one has the next number. So
// checkpoints of one job are in order by run and step, also when it went back to an
// earlier one.
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

// The folder of a job's checkpoints: its name, with what no file name has as %XX.
std::string FolderOf(const std::string& job);
std::string FolderOf(const std::string& job, const CheckpointName& name);

struct CheckpointFile {
  std::string name = {};  // in the checkpoint's folder
  uint64_t bytes = 0;
  uint64_t head_bytes =
      0;  // of the safetensors head, whose entries have sums of their own
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
  TrainingSettings declared = {};  // as workers declared them
  TrainingSettings training = {};  // that hold at this step, changes included
  LossScalerState loss_scaler = {};
  uint64_t skipped_steps = 0;
  std::vector<CheckpointTensor> tensors = {};
  std::vector<CheckpointFile> files = {};

  uint64_t bytes() const;  // of all files
};

std::string WriteManifest(const Manifest& manifest);
// DataLoss when it is damaged, FailedPrecondition when it is of a newer format.
absl::StatusOr<Manifest> ParseManifest(const std::string& json);

}  // namespace syncline
