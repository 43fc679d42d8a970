#include "server/optimizer/training.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "server/optimizer/delayed_nesterov.h"

namespace syncline {
namespace {

constexpr OptionSpec kClipGlobalNorm = {
    .name = "clip_global_norm",
    .most = 1e30,
    .meaning = "largest norm of the gradient of all tensors together; 0: no clipping"};

// Whether one optimizer can continue with the state of the other.
bool SameState(const Optimizer& a, const Optimizer& b) {
  return std::ranges::equal(a.slots(), b.slots(), {}, &StateSlot::name, &StateSlot::name);
}

absl::Status OfTensor(size_t tensor, const absl::Status& status) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", tensor, ": ", std::string(status.message())));
}

// Fails if the momentum of a tensor is delayed in a mode whose steps are means of several
// contributions.
absl::Status CheckDelays(const TrainingSettings& settings,
                         std::span<const TrainedTensor> tensors) {
  if (settings.sync().is_async()) return absl::OkStatus();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!DelaysMomentum(settings.optimizer, tensors[i].group)) continue;
    return OfTensor(
        i, absl::InvalidArgumentError(absl::StrCat(
               "mode '", FormatNamedOptions(settings.mode),
               "' makes each step of the mean of several contributions, but "
               "momentum_every gathers contributions that are steps of their own; leave "
               "momentum_every at 1, or take mode asp")));
  }
  return absl::OkStatus();
}

}  // namespace

double TrainingSettings::clip_global_norm() const {
  return OptionOr(std::span(&kClipGlobalNorm, 1), gradient, kClipGlobalNorm.name);
}

std::vector<OptionSpec> GradientOptions() {
  std::vector<OptionSpec> options = {kClipGlobalNorm};
  const auto transforms = TransformOptions();
  options.insert(options.end(), transforms.begin(), transforms.end());
  return options;
}

absl::Status ValidateTraining(const TrainingSettings& settings) {
  SYNCLINE_RETURN_IF_ERROR(ValidateOptimizer(settings.optimizer));
  SYNCLINE_RETURN_IF_ERROR(ValidateSchedule(settings.schedule));
  SYNCLINE_RETURN_IF_ERROR(
      ValidateOptions("gradient transforms", GradientOptions(), settings.gradient));
  if (settings.ScalesLoss()) {
    SYNCLINE_RETURN_IF_ERROR(ValidateLossScaling(settings.loss_scaling));
  }
  if (settings.accumulate_steps < 1 || settings.accumulate_steps > kMaxAccumulateSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("accumulate_steps is ", settings.accumulate_steps,
                     ", but must be in [1, ", kMaxAccumulateSteps, "]"));
  }
  SYNCLINE_RETURN_IF_ERROR(ParseSyncMode(settings.mode).status());
  return absl::OkStatus();
}

TrainingSettings Canonical(const TrainingSettings& settings) {
  TrainingSettings canonical = settings;
  canonical.optimizer.options =
      WithoutDefaults(OptionsOf(settings.optimizer.name), settings.optimizer.options);
  canonical.schedule.values = WithoutDefaults(ScheduleOptionsOf(settings.schedule.name),
                                              settings.schedule.values);
  canonical.gradient = WithoutDefaults(GradientOptions(), settings.gradient);
  if (settings.ScalesLoss()) {
    canonical.loss_scaling.values = WithoutDefaults(
        LossScalingOptionsOf(settings.loss_scaling.name), settings.loss_scaling.values);
  }
  if (settings.mode.name.empty()) canonical.mode.name = "bsp";
  canonical.mode.values =
      WithoutDefaults(SyncModeOptionsOf(settings.mode.name), settings.mode.values);
  return canonical;
}

absl::Status CheckChange(const TrainingSettings& settings, const TrainingSettings& next,
                         std::span<const TrainedTensor> tensors) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto before, TrainingPlan::Create(settings, tensors));
  SYNCLINE_ASSIGN_OR_RETURN(const auto after, TrainingPlan::Create(next, tensors));
  const absl::Status needs_a_new_job = absl::InvalidArgumentError(
      "the new options need other optimizer state or another placement than the job has; "
      "begin a new job");
  if (settings.NeedsAccumulator() != next.NeedsAccumulator() ||
      before->NeedsDecision() != after->NeedsDecision()) {
    return needs_a_new_job;
  }
  if (before->contributions() != after->contributions()) {
    return absl::InvalidArgumentError(
        "the new options change what workers push at a step (hessian_interval, "
        "freeze_step, var_freeze_step), which running workers do not learn; begin a new "
        "job");
  }
  if (before->contributions() != ContributionPlan{} &&
      settings.accumulate_steps != next.accumulate_steps) {
    return absl::InvalidArgumentError(
        "accumulate_steps decides at which steps workers push something other than "
        "gradients, and running workers do not learn of it; begin a new job");
  }
  for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    if (!SameState(before->optimizer(tensor), after->optimizer(tensor)) ||
        before->state_type(tensor) != after->state_type(tensor) ||
        before->NeedsWholeTensor(tensor) != after->NeedsWholeTensor(tensor)) {
      return needs_a_new_job;
    }
  }
  return absl::OkStatus();
}

TrainingPlan::TrainingPlan(const TrainingSettings& settings,
                           GradientTransforms transforms)
    : settings_(settings), transforms_(transforms) {}

absl::StatusOr<std::unique_ptr<const TrainingPlan>> TrainingPlan::Create(
    const TrainingSettings& settings, std::span<const TrainedTensor> tensors) {
  SYNCLINE_RETURN_IF_ERROR(ValidateTraining(settings));
  OptionValues transforms = settings.gradient;
  transforms.erase(std::string(kClipGlobalNorm.name));
  std::unique_ptr<TrainingPlan> plan(
      new TrainingPlan(settings, GradientTransforms(transforms)));
  SYNCLINE_ASSIGN_OR_RETURN(plan->job_, MakeOptimizer(settings.optimizer));
  const std::vector<OptionSpec> specs = OptionsOf(settings.optimizer.name);
  std::map<OptionValues, std::shared_ptr<const Optimizer>> made;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const GroupOptions& group = tensors[i].group;
    auto& optimizer = made[group.options];
    auto own = MakeOptimizer(settings.optimizer, group);
    if (!own.ok()) return OfTensor(i, own.status());
    if (optimizer == nullptr) optimizer = *std::move(own);
    if (optimizer->contributions() != plan->job_->contributions()) {
      return OfTensor(i, absl::InvalidArgumentError(
                             "a parameter group cannot change what all workers push "
                             "(hessian_interval, freeze_step, var_freeze_step)"));
    }
    plan->optimizers_.push_back(optimizer);
    plan->remembers_gradients_.push_back(std::ranges::any_of(
        optimizer->slots(),
        [](const StateSlot& slot) { return slot.kind != SlotKind::kWeights; }));
    plan->learning_rates_.push_back(
        OptionOr(specs, Merge(settings.optimizer.options, group.options), "lr") *
        group.learning_rate_scale);
    const std::string& state =
        group.state.empty() ? settings.optimizer.state : group.state;
    SYNCLINE_ASSIGN_OR_RETURN(const StateType type, ParseStateType(state));
    plan->state_types_.push_back(type);
  }
  SYNCLINE_RETURN_IF_ERROR(plan->CheckJobReduction());
  SYNCLINE_RETURN_IF_ERROR(plan->CheckMode());
  SYNCLINE_RETURN_IF_ERROR(CheckDelays(settings, tensors));
  return plan;
}

// Fails if the optimizer has a JobReduction and the other settings do not allow one. The
// reduction uses gradients before any transform, and needs the state unrounded.
absl::Status TrainingPlan::CheckJobReduction() const {
  if (job_reduction() == nullptr) return absl::OkStatus();
  const bool exact = std::ranges::all_of(
      state_types_, [](StateType type) { return type == StateType::kF32; });
  if (exact && transforms_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer '", settings_.optimizer.name,
                   "' needs f32 state and no gradient transforms but clip_global_norm"));
}

// Fails if the mode does not allow the other settings.
absl::Status TrainingPlan::CheckMode() const {
  const SyncMode mode = settings_.sync();
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("mode '", FormatNamedOptions(settings_.mode), "' ", why...));
  };
  if (mode.has_quorum() && settings_.aggregation == Aggregation::kArrival) {
    return refuse(
        "leaves out contributions that come in parts, and aggregation=arrival adds what "
        "comes; take aggregation=rank_order, or mode bsp without a quorum");
  }
  if (!mode.has_delays()) return absl::OkStatus();
  if (settings_.ScalesLoss()) {
    return refuse(
        "takes gradients of several steps at a time, and loss scaling would have another "
        "scale for each; take bf16 without loss scaling, or mode bsp");
  }
  if (settings_.aggregation == Aggregation::kArrival) {
    return refuse(
        "keeps contributions apart, and aggregation=arrival adds them to one sum; take "
        "aggregation=rank_order, or mode bsp");
  }
  if (!mode.is_async()) return absl::OkStatus();
  const auto slots = job_->slots();
  if (mode.view_ahead != 0 &&
      std::ranges::find(slots, kMomentumSlot, &StateSlot::name) == slots.end()) {
    return refuse("shows workers the weights ahead of their momentum, but optimizer '",
                  settings_.optimizer.name,
                  "' keeps no momentum along which it steps; take sgd or rmsprop with "
                  "momentum, or view_ahead=0");
  }
  if (NeedsDecision()) {
    return refuse(
        "has no whole step that clip_global_norm, nonfinite_steps=skip or "
        "optimizer lbfgs could decide about; take clip_value, or mode ssp");
  }
  if (settings_.accumulate_steps > 1) {
    return refuse(
        "makes an update of each contribution, so accumulate_steps must be 1, "
        "not ",
        settings_.accumulate_steps, "; take accumulate_on=worker");
  }
  if (contributions() != ContributionPlan{}) {
    return refuse("takes gradients only, and at some steps optimizer '",
                  settings_.optimizer.name, "' takes something other than gradients");
  }
  for (uint32_t tensor = 0; tensor < optimizers_.size(); ++tensor) {
    if (!NeedsWholeTensor(tensor)) continue;
    return refuse(
        "updates each block of a tensor when its part of a contribution comes, "
        "but optimizer '",
        settings_.optimizer.name,
        "' or a gradient transform (clip_tensor_norm, agc, centralize) looks at "
        "all of a tensor; take sgd or adamw, or mode ssp");
  }
  return absl::OkStatus();
}

bool TrainingPlan::NeedsDecision() const {
  return settings_.clip_global_norm() > 0 || settings_.SkipsNonfinite() ||
         job_reduction() != nullptr;
}

bool TrainingPlan::NeedsWholeTensor(uint32_t tensor) const {
  return transforms_.NeedsTensor() || optimizer(tensor).tensor_reduction() != nullptr;
}

float TrainingPlan::InitialLossScale() const {
  return settings_.ScalesLoss() ? StartLossScaling(settings_.loss_scaling).scale : 1.0f;
}

double TrainingPlan::JobLearningRate(uint64_t step) const {
  return OptionOr(OptionsOf(settings_.optimizer.name), settings_.optimizer.options,
                  "lr") *
         ScheduleFactor(settings_.schedule, settings_.UpdateOf(step));
}

double TrainingPlan::LearningRate(uint32_t tensor, uint64_t step, double samples) const {
  return learning_rates_[tensor] *
         ScheduleFactor(settings_.schedule, settings_.UpdateOf(step)) *
         BatchScale(settings_.schedule, samples);
}

}  // namespace syncline
