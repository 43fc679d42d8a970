// The description of a job: its tensors and settings, as each of its workers declares
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/base/tiling.h"
#include "comm/compression/transfer.h"
#include "comm/job/durability.h"
#include "comm/job/job_settings.h"
#include "server/optimizer/training.h"

namespace syncline {

// Most elements of a job, over all tensors. This corresponds to a million blocks, for
// which the coordinator needs tables of about 100 MB. Whether servers have the memory is
// checked elsewhere (admission.h).
inline constexpr uint64_t kMaxJobElements = uint64_t{1} << 40;

struct TensorSpec {
  std::string name = {};
  std::vector<uint64_t> shape = {};
  GroupOptions group = {};

  uint64_t elements() const;  // product of the shape; 1 for a scalar (empty shape)
};

// Name of the tensor in which Python's ExactlyOnceSampler records the batches that have
// counted. Servers treat it like any other tensor. It is not part of the model that users
// see.
inline constexpr char kSamplersBooks[] = "syncline.samples";

struct JobSpec {
  std::string name = {};
  uint32_t workers = 1;  // the job begins when this many have joined
  // Number of ranks on all hosts together, if each worker is a host. 0: each worker is
  // one rank.
  uint32_t ranks = 0;
  JobSettings settings = {};
  TrainingSettings training = {};
  std::vector<TensorSpec> tensors = {};

  // kNone if the setting has a word that ValidateJob refuses.
  Durability durability() const {
    return ParseDurability(settings.durability).value_or(Durability::kNone);
  }
  bool IsJournaled() const { return HasJournals(durability()); }
  // Whether the job waits for a server that has died and can restore its journal.
  bool WaitsForServers() const {
    return IsJournaled() && !training.sync().skips_versions();
  }
  // Whether each server has a backup in the memory of another one.
  bool HasBackups() const { return syncline::HasBackups(durability()); }

  // Number of steps from one scheduled checkpoint to the next, a multiple of
  // accumulate_steps. 0: none is scheduled.
  uint64_t CutEvery() const;
  std::vector<BlockRange> Blocks() const;
  // Returns the tensors in order, as TrainingPlan::Create takes them.
  std::vector<TrainedTensor> Trained() const;
  // Returns how each tensor is transferred, in order. Fails with InvalidArgument, as
  // ParseTransfer does.
  absl::StatusOr<std::vector<TensorTransfers>> Transfers() const;
};

// Fails with InvalidArgument, which names the setting or tensor, its value and the
// allowed range.
absl::Status ValidateJob(const JobSpec& spec);
// Checks that a job of that mode can have these goals. Fails with InvalidArgument, which
// says why not.
absl::Status CheckGoals(const std::string& goals, const SyncMode& sync);
// Checks that these answers can change something in a job of that mode and durability.
// Fails with InvalidArgument.
absl::Status CheckAnswers(const std::string& answers, const JobSpec& job);

// Checks that a worker that declares `theirs` may join a job that was made of `ours`.
// Otherwise fails with FailedPrecondition and Failure::kJobRefused, and names the first
// difference ("tensor 'fc1.weight' is [10, 20] here and ...").
absl::Status CheckSameJob(const JobSpec& ours, const JobSpec& theirs);

}  // namespace syncline
