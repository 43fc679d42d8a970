// How a job turns contributions into weights: every setting of its numeric side in one
// value. It travels from the workers to the coordinator and on to all shards, and is
// checked once, when the job registers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/options.h"
#include "comm/base/sync_mode.h"
#include "server/optimizer/loss_scaler.h"
#include "server/optimizer/optimizer.h"
#include "server/optimizer/schedule.h"
#include "server/optimizer/tensor_shape.h"
#include "server/optimizer/transforms.h"

namespace syncline {

// In rank order the bits do not depend on who is first; on arrival a server holds one sum
// instead of one contribution for each worker.
enum class Aggregation { kRankOrder, kArrival };
enum class NonfiniteSteps { kApply, kSkip };

struct TrainingSettings {
  OptimizerSettings optimizer = {};
  NamedOptions schedule = {.name = "constant"};
  // Options of GradientOptions(): clip_global_norm and those of the transforms.
  OptionValues gradient = {};
  NamedOptions loss_scaling = {};  // no name: none
  NonfiniteSteps nonfinite_steps = NonfiniteSteps::kApply;
  // Pushes of each worker that make one update; the others only add to a sum.
  uint32_t accumulate_steps = 1;
  Aggregation aggregation = Aggregation::kRankOrder;
  NamedOptions mode = {.name = "bsp"};  // ParseSyncMode

  bool operator==(const TrainingSettings&) const = default;

  bool ScalesLoss() const { return !loss_scaling.name.empty(); }
  // Whether a step whose gradient is not finite changes nothing.
  bool SkipsNonfinite() const {
    return ScalesLoss() || nonfinite_steps == NonfiniteSteps::kSkip;
  }
  // REQUIRES: valid settings.
  SyncMode sync() const { return *ParseSyncMode(mode); }
  // 0 without clipping.
  double clip_global_norm() const;
  // Whether a sum has to be kept between pushes.
  bool NeedsAccumulator() const {
    return accumulate_steps > 1 || aggregation == Aggregation::kArrival;
  }
  // Whether pushes of `step` complete an update, or only add to the sum.
  bool Updates(uint64_t step) const { return (step + 1) % accumulate_steps == 0; }
  // The number of the update that `step` belongs to, from 0.
  uint64_t UpdateOf(uint64_t step) const { return step / accumulate_steps; }
};

inline constexpr uint32_t kMaxAccumulateSteps = 65536;

// clip_global_norm, then TransformOptions().
std::vector<OptionSpec> GradientOptions();

// InvalidArgument names the setting, its value and what is allowed.
absl::Status ValidateTraining(const TrainingSettings& settings);

// A tensor of a job, as the numeric side sees it.
struct TrainedTensor {
  TensorShape shape = TensorShape({});
  GroupOptions group = {};
};

// The same settings without options that are the defaults anyway, for comparison.
// REQUIRES: valid settings.
TrainingSettings Canonical(const TrainingSettings& settings);

// Whether a running job may go on with `next` in place of `settings`: InvalidArgument
// when they are not valid, or need other optimizer state.
absl::Status CheckChange(const TrainingSettings& settings, const TrainingSettings& next,
                         std::span<const TrainedTensor> tensors);

// What the settings come down to: who updates each tensor, and with which scalars.
//
// Thread safety: immutable.
class TrainingPlan {
 public:
  // Fails as ValidateTraining and ValidateGroup do.
  static absl::StatusOr<std::unique_ptr<const TrainingPlan>> Create(
      const TrainingSettings& settings, std::span<const TrainedTensor> tensors);

  const TrainingSettings& settings() const { return settings_; }
  const Optimizer& optimizer(uint32_t tensor) const { return *optimizers_[tensor]; }
  const GradientTransforms& transforms() const { return transforms_; }
  // The same for all tensors; null for most optimizers.
  const JobReduction* job_reduction() const { return job_->job_reduction(); }

  // Whether shards wait for a decision about each update.
  bool NeedsDecision() const;
  // Whether all blocks of the tensor must live on one shard and step together.
  bool NeedsWholeTensor(uint32_t tensor) const;

  ContributionPlan contributions() const { return job_->contributions(); }
  float InitialLossScale() const;
  // At `step`, before scales of groups and batches.
  double JobLearningRate(uint64_t step) const;
  // Of the update that `step` belongs to. `samples` are those of the contributions.
  double LearningRate(uint32_t tensor, uint64_t step, double samples) const;
  // Whether the tensor's optimizer keeps something of the gradients that it has seen:
  // momentum, moments, but not averages of weights.
  bool RemembersGradients(uint32_t tensor) const { return remembers_gradients_[tensor]; }
  // How the tensor's optimizer state is stored, slot by slot.
  StateType state_type(uint32_t tensor) const { return state_types_[tensor]; }

 private:
  TrainingPlan(const TrainingSettings& settings, GradientTransforms transforms);
  absl::Status CheckJobReduction() const;
  absl::Status CheckMode() const;

  const TrainingSettings settings_;
  const GradientTransforms transforms_;
  std::shared_ptr<const Optimizer> job_;                      // without group options
  std::vector<std::shared_ptr<const Optimizer>> optimizers_;  // by tensor
  std::vector<double> learning_rates_;                        // by tensor
  std::vector<bool> remembers_gradients_;                     // by tensor
  std::vector<StateType> state_types_;                        // as wished, by tensor
};

}  // namespace syncline
