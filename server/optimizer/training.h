// All settings that determine how a job turns contributions into weights. They go from
// the workers to the coordinator and to all shards, and are checked once, when the job
// registers.
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

// Order in which contributions are summed. kRankOrder: the bits do not depend on the
// order of arrival. kArrival: a server keeps one sum instead of one contribution of each
// worker.
enum class Aggregation { kRankOrder, kArrival };
enum class NonfiniteSteps { kApply, kSkip };

struct TrainingSettings {
  OptimizerSettings optimizer = {};
  NamedOptions schedule = {.name = "constant"};
  // Options of GradientOptions(): clip_global_norm and those of the transforms.
  OptionValues gradient = {};
  NamedOptions loss_scaling = {};  // no name: no loss scaling
  NonfiniteSteps nonfinite_steps = NonfiniteSteps::kApply;
  // Number of pushes of each worker for one update. All but the last only add to a sum.
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
  // Returns the largest norm of the whole gradient; 0: no clipping.
  double clip_global_norm() const;
  // Whether a sum is kept between pushes.
  bool NeedsAccumulator() const {
    return accumulate_steps > 1 || aggregation == Aggregation::kArrival;
  }
  // Whether pushes of `step` complete an update, or only add to the sum.
  bool Updates(uint64_t step) const { return (step + 1) % accumulate_steps == 0; }
  // Number of the update that `step` belongs to, from 0.
  uint64_t UpdateOf(uint64_t step) const { return step / accumulate_steps; }
};

inline constexpr uint32_t kMaxAccumulateSteps = 65536;

// Returns clip_global_norm, then TransformOptions().
std::vector<OptionSpec> GradientOptions();

// Fails with InvalidArgument, which names the setting, its value and what is allowed.
absl::Status ValidateTraining(const TrainingSettings& settings);

// The properties of a tensor that training depends on.
struct TrainedTensor {
  TensorShape shape = TensorShape({});
  GroupOptions group = {};
};

// Returns the same settings without options that have their default value, for
// comparison. REQUIRES: valid settings.
TrainingSettings Canonical(const TrainingSettings& settings);

// Checks that a running job may continue with `next` instead of `settings`. Fails with
// InvalidArgument if `next` is not valid, or needs other optimizer state.
absl::Status CheckChange(const TrainingSettings& settings, const TrainingSettings& next,
                         std::span<const TrainedTensor> tensors);

// The plan that follows from the settings: the optimizer of each tensor, and its scalars
// at each step.
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
  // Returns the job's reduction; null for most optimizers.
  const JobReduction* job_reduction() const { return job_->job_reduction(); }

  // Whether shards wait for a decision about each update.
  bool NeedsDecision() const;
  // Whether all blocks of the tensor must live on one shard and step together.
  bool NeedsWholeTensor(uint32_t tensor) const;

  ContributionPlan contributions() const { return job_->contributions(); }
  float InitialLossScale() const;
  // Learning rate at `step`, before the scales of groups and batches.
  double JobLearningRate(uint64_t step) const;
  // Learning rate of the update that `step` belongs to. `samples` is the number of
  // samples of its contributions.
  double LearningRate(uint32_t tensor, uint64_t step, double samples) const;
  // Whether the tensor's optimizer keeps state of past gradients, such as momentum or
  // moments. Averages of weights do not count.
  bool RemembersGradients(uint32_t tensor) const { return remembers_gradients_[tensor]; }
  // Format of the tensor's optimizer state, as configured. See EffectiveType.
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
  std::vector<StateType> state_types_;                        // by tensor, as configured
};

}  // namespace syncline
