// What a job is: its tensors and settings, as every worker of it declares them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/base/tiling.h"
#include "comm/compression/transfer.h"
#include "comm/job/job_settings.h"
#include "server/optimizer/training.h"

namespace syncline {

// Of all tensors together: a job of a million blocks, whose tables the coordinator still
// keeps in some 100 MB. Whether servers have memory for it is another question
// (admission.h).
inline constexpr uint64_t kMaxJobElements = uint64_t{1} << 40;

struct TensorSpec {
  std::string name = {};
  std::vector<uint64_t> shape = {};
  GroupOptions group = {};

  uint64_t elements() const;  // product of the shape; 1 for a scalar (empty shape)
};

// In which Python's ExactlyOnceSampler keeps which batches have counted: a tensor like all
// others for servers, and none of the model's for people.
inline constexpr char kSamplersBooks[] = "syncline.samples";

struct JobSpec {
  std::string name = {};
  uint32_t workers = 1;  // the job begins when so many have joined
  uint32_t ranks = 0;    // on all of them, where they are hosts; 0: each is one
  JobSettings settings = {};
  TrainingSettings training = {};
  std::vector<TensorSpec> tensors = {};

  bool IsJournaled() const {
    return settings.durability == "disk" || settings.durability == "disk+peer";
  }
  // For one that has died and comes back with its journal.
  bool WaitsForServers() const {
    return IsJournaled() && !training.sync().skips_versions();
  }
  // Each server has a backup in the memory of another one.
  bool HasBackups() const {
    return settings.durability == "peer" || settings.durability == "disk+peer";
  }

  // Steps from one scheduled checkpoint to the next, in whole updates; 0: none.
  uint64_t CutEvery() const;
  std::vector<BlockRange> Blocks() const;
  // For TrainingPlan::Create, in order.
  std::vector<TrainedTensor> Trained() const;
  // How each travels, in order; InvalidArgument as ParseTransfer.
  absl::StatusOr<std::vector<TensorTransfers>> Transfers() const;
};

// InvalidArgument that names the setting or tensor, its value and the allowed range.
absl::Status ValidateJob(const JobSpec& spec);
// Whether a job of that mode can have these goals; InvalidArgument says why not.
absl::Status CheckGoals(const std::string& goals, const SyncMode& sync);
// Likewise: whether these answers change anything in that mode.
absl::Status CheckAnswers(const std::string& answers, const SyncMode& sync);

// OK when a worker that brings `theirs` may join a job made of `ours`; FailedPrecondition
// with Failure::kJobRefused names the first difference ("tensor 'fc1.weight' is [10, 20]
// here and ...").
absl::Status CheckSameJob(const JobSpec& ours, const JobSpec& theirs);

}  // namespace syncline
