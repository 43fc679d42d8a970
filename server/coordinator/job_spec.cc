#include "server/coordinator/job_spec.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/job/answers.h"
#include "comm/job/goals.h"

namespace syncline {
namespace {

absl::Status CheckTensor(const TensorSpec& tensor) {
  SYNCLINE_RETURN_IF_ERROR(
      CheckName("a tensor's name", tensor.name, kMaxTensorNameBytes));
  if (tensor.shape.size() > kMaxTensorDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", tensor.name, "' has ", tensor.shape.size(),
                     " dimensions, at most ", kMaxTensorDimensions, " are allowed"));
  }
  uint64_t elements = 1;
  for (const uint64_t size : tensor.shape) {
    if (size != 0 && elements > kMaxTensorElements / size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor.name, "' of shape [", absl::StrJoin(tensor.shape, ", "),
          "] has more than ", kMaxTensorElements, " elements"));
    }
    elements *= size;
  }
  return absl::OkStatus();
}

// Checks the tensors' groups together with the job's settings.
absl::Status CheckTraining(const JobSpec& spec) {
  SYNCLINE_RETURN_IF_ERROR(ValidateTraining(spec.training));
  for (const TensorSpec& tensor : spec.tensors) {
    const absl::Status group = ValidateGroup(spec.training.optimizer, tensor.group);
    if (group.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", tensor.name, "': ", std::string(group.message())));
  }
  if (std::ranges::all_of(spec.tensors,
                          [](const TensorSpec& tensor) { return tensor.group.frozen; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("all tensors of job '", spec.name, "' are frozen"));
  }
  return TrainingPlan::Create(spec.training, spec.Trained()).status();
}

std::string Written(const OptionValues& values) {
  return absl::StrCat("{", absl::StrJoin(values, ", ", absl::PairFormatter("=")), "}");
}
std::string Written(const NamedOptions& options) {
  return absl::StrCat("'", options.name, "' ", Written(options.values));
}
std::string Written(const OptimizerSettings& settings) {
  return absl::StrCat(Written(NamedOptions{settings.name, settings.options}), " with ",
                      settings.state, " state");
}

// What codecs and the optimizer must agree on.
// What a memory keeps of a gradient must not go with something else.
absl::Status CheckMemories(const JobSpec& spec,
                           const std::vector<TensorTransfers>& transfers) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto plan,
                            TrainingPlan::Create(spec.training, spec.Trained()));
  if (plan->contributions().hessian_every == 0) return absl::OkStatus();
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].push.memory.kind == MemoryKind::kNone) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "push_codec '", spec.settings.push_codec,
        "' keeps a part of the gradients of tensor '", spec.tensors[i].name,
        "', but at some steps the optimizer ", Written(spec.training.optimizer),
        " needs whole Hessian estimates; set memory=none or choose a dense codec"));
  }
  return absl::OkStatus();
}

// A delta is added to the version before it, which members that are behind may never
// hold.
absl::Status CheckDeltas(const JobSpec& spec,
                         const std::vector<TensorTransfers>& transfers) {
  if (!spec.training.sync().skips_versions()) return absl::OkStatus();
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (!transfers[i].publish.compresses()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "publish_codec '", spec.settings.publish_codec, "' sends tensor '",
        spec.tensors[i].name, "' as differences from the version before, which in mode '",
        FormatNamedOptions(spec.training.mode),
        "' not every worker holds; choose fp32, bf16 or fp16, or mode bsp"));
  }
  return absl::OkStatus();
}

absl::Status CheckSenders(const JobSpec& spec,
                          std::span<const TensorTransfers> transfers) {
  const bool is_sum_alone = spec.training.NeedsAccumulator();
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (!transfers[i].push.mean_of_senders || !is_sum_alone) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "push_codec '", spec.settings.push_codec, "' averages each value of tensor '",
        spec.tensors[i].name,
        "' over the workers that sent it, but with aggregation=arrival or "
        "accumulate_steps the servers keep only a sum; choose aggregation=rank_order, "
        "accumulate on the workers, or set mean_of_senders=0"));
  }
  return absl::OkStatus();
}

// Whether the optimizer of a tensor keeps no momentum of its own.
bool HasNoMomentum(const JobSpec& spec, const TensorSpec& tensor) {
  const OptimizerSettings& optimizer = spec.training.optimizer;
  if (optimizer.name == "signsgd") return true;
  const OptionValues options = Merge(optimizer.options, tensor.group.options);
  return optimizer.name == "sgd" && OptionOr(OptionsOf("sgd"), options, "momentum") == 0;
}

absl::Status CheckTransfers(const JobSpec& spec) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<TensorTransfers> transfers,
                            spec.Transfers());
  SYNCLINE_RETURN_IF_ERROR(CheckDeltas(spec, transfers));
  SYNCLINE_RETURN_IF_ERROR(CheckMemories(spec, transfers));
  SYNCLINE_RETURN_IF_ERROR(CheckSenders(spec, transfers));
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& push = transfers[i].push;
    const bool has_momentum =
        push.keeps_momentum || push.memory.kind == MemoryKind::kMomentumCorrection;
    if (!has_momentum || HasNoMomentum(spec, spec.tensors[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "push_codec '", spec.settings.push_codec, "' keeps the momentum of tensor '",
        spec.tensors[i].name,
        "' on the workers, so the optimizer must be sgd with momentum=0 or signsgd, not ",
        Written(spec.training.optimizer)));
  }
  return absl::OkStatus();
}

absl::Status Differs(absl::string_view what) {
  return WithFailure(
      absl::FailedPreconditionError(absl::StrCat(
          what,
          "; every worker of a job must declare the same, or choose another --job")),
      Failure::kJobRefused);
}

std::string Quoted(const JobSetting& setting, const JobSettings& settings) {
  return absl::StrCat("'", Printable(GetJobSetting(setting, settings)), "'");
}

std::string Shape(const TensorSpec& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]");
}

// Hosts that number their ranks differently would give two processes the same number.
absl::Status CheckSameRanks(const JobSpec& ours, const JobSpec& theirs) {
  if (ours.ranks == theirs.ranks) return absl::OkStatus();
  const auto members = [](uint32_t ranks) -> std::string {
    if (ranks == 0) return "workers that each push for themselves";
    return absl::StrCat("hosts that each push for ", ranks, " ranks");
  };
  return Differs(absl::StrCat(
      "job '", ours.name, "' has ", members(ours.ranks), ", not ", members(theirs.ranks),
      ": 'syncline run' needs the same --nproc-per-node and --local-aggregation on all "
      "nodes; torchrun prints on each how many ranks there are altogether"));
}

// Names the first setting that differs.
absl::Status CheckSameTraining(const std::string& job, const TrainingSettings& ours,
                               const TrainingSettings& theirs) {
  const auto differs = [&](absl::string_view what, const auto& a, const auto& b) {
    return Differs(absl::StrCat(job, "has ", what, " ", a, ", not ", b));
  };
  if (ours.optimizer != theirs.optimizer) {
    return differs("optimizer", Written(ours.optimizer), Written(theirs.optimizer));
  }
  if (ours.schedule != theirs.schedule) {
    return differs("schedule", Written(ours.schedule), Written(theirs.schedule));
  }
  if (ours.gradient != theirs.gradient) {
    return differs("gradient transforms", Written(ours.gradient),
                   Written(theirs.gradient));
  }
  if (ours.loss_scaling != theirs.loss_scaling) {
    return differs("loss scaling", Written(ours.loss_scaling),
                   Written(theirs.loss_scaling));
  }
  if (ours.accumulate_steps != theirs.accumulate_steps) {
    return differs("accumulate_steps", ours.accumulate_steps, theirs.accumulate_steps);
  }
  if (ours.mode != theirs.mode) {
    return differs("mode", FormatNamedOptions(ours.mode),
                   FormatNamedOptions(theirs.mode));
  }
  if (ours == theirs) return absl::OkStatus();
  return Differs(absl::StrCat(job, "skips or aggregates steps differently"));
}

}  // namespace

uint64_t TensorSpec::elements() const {
  uint64_t elements = 1;
  for (const uint64_t size : shape) elements *= size;
  return elements;
}

uint64_t JobSpec::CutEvery() const {
  const uint64_t pushes = std::max<uint32_t>(training.accumulate_steps, 1);
  return (settings.checkpoint_every.steps + pushes - 1) / pushes * pushes;
}

std::vector<BlockRange> JobSpec::Blocks() const {
  std::vector<uint64_t> elements;
  for (const TensorSpec& tensor : tensors) elements.push_back(tensor.elements());
  return CutIntoBlocks(elements);
}

std::vector<TrainedTensor> JobSpec::Trained() const {
  std::vector<TrainedTensor> trained;
  for (const TensorSpec& tensor : tensors) {
    trained.push_back({.shape = TensorShape(tensor.shape), .group = tensor.group});
  }
  return trained;
}

absl::StatusOr<std::vector<TensorTransfers>> JobSpec::Transfers() const {
  std::vector<Transfer::Shape> shapes;
  for (const TensorSpec& tensor : tensors) {
    shapes.push_back(Transfer::ShapeOf(tensor.name, tensor.shape));
  }
  return ParseTransfers(settings.push_codec, settings.publish_codec, shapes);
}

absl::Status CheckGoals(const std::string& goals, const SyncMode& sync) {
  SYNCLINE_ASSIGN_OR_RETURN(const GoalSpec spec, ParseGoals(goals));
  for (const Goal& goal : spec.goals) {
    if (goal.kind == GoalKind::kParticipation && sync.is_async()) {
      return absl::InvalidArgumentError(
          "goals: 'participation' has no meaning in mode asp, where each step is the "
          "contribution of one worker; leave it out");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAnswers(const std::string& answers, const JobSpec& job) {
  const SyncMode sync = job.training.sync();
  SYNCLINE_ASSIGN_OR_RETURN(const AnswerSpec spec, ParseAnswers(answers));
  if (spec.excludes && (sync.is_async() || sync.has_quorum())) {
    return absl::InvalidArgumentError(
        absl::StrCat("answers: 'exclude_straggler' has no use in mode ",
                     sync.is_async() ? "asp" : "bsp with a quorum",
                     ", where no worker waits for the slowest; leave it out"));
  }
  if (spec.staleness > 0 && sync.kind != SyncMode::Kind::kSsp) {
    return absl::InvalidArgumentError(
        "answers: 'staleness' is only for jobs that begin in mode ssp, such as ssp:0, "
        "which makes the same steps as bsp (docs/modes.md)");
  }
  if (spec.adds_server && !job.HasBackups()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "answers: 'add_server' needs durability=peer or disk+peer, because only shares "
        "with a backup can move, but the job has durability=",
        std::string(DurabilityName(job.durability())), "; leave it out"));
  }
  return CheckAnswers(answers);
}

absl::Status ValidateJob(const JobSpec& spec) {
  SYNCLINE_RETURN_IF_ERROR(CheckName("a job's name", spec.name, kMaxJobNameBytes));
  if (spec.workers < 1 || spec.workers > kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("job '", spec.name, "' is declared with ", spec.workers,
                     " workers, allowed are 1 to ", kMaxWorkers));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckJobSettings(spec.settings));
  if (spec.tensors.empty() || spec.tensors.size() > kMaxTensorsPerJob) {
    return absl::InvalidArgumentError(
        absl::StrCat("job '", spec.name, "' has ", spec.tensors.size(),
                     " tensors, allowed are 1 to ", kMaxTensorsPerJob));
  }
  std::set<std::string_view> names;
  uint64_t elements = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    SYNCLINE_RETURN_IF_ERROR(CheckTensor(tensor));
    elements += tensor.elements();
    if (elements > kMaxJobElements) {
      return absl::InvalidArgumentError(absl::StrCat("the tensors of job '", spec.name,
                                                     "' have more than ", kMaxJobElements,
                                                     " elements together"));
    }
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two tensors are named '", tensor.name, "'"));
    }
  }
  SYNCLINE_RETURN_IF_ERROR(CheckTraining(spec));
  if (spec.ranks > 0) {
    SYNCLINE_RETURN_IF_ERROR(CheckLocalAggregation(spec.training.mode));
  }
  const SyncMode sync = spec.training.sync();
  SYNCLINE_RETURN_IF_ERROR(CheckGoals(spec.settings.goals, sync));
  SYNCLINE_RETURN_IF_ERROR(CheckAnswers(spec.settings.answers, spec));
  if (spec.HasBackups() && (sync.skips_versions() || sync.has_quorum())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "durability=", spec.settings.durability,
        " needs mode bsp without a quorum, but the job has mode ",
        FormatNamedOptions(spec.training.mode), "; choose durability=disk or none"));
  }
  if (sync.quorum > spec.workers && !sync.is_whole) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mode '", FormatNamedOptions(spec.training.mode), "': quorum is ", sync.quorum,
        ", allowed are 1 to ", spec.workers, ", the job's workers"));
  }
  if (spec.training.sync().is_async() && spec.settings.checkpoint_every.IsScheduled()) {
    return absl::InvalidArgumentError(
        "checkpoint_every needs mode bsp or ssp, because in mode asp blocks have no step "
        "in common");
  }
  return CheckTransfers(spec);
}

absl::Status CheckSameJob(const JobSpec& ours, const JobSpec& theirs) {
  const std::string job = absl::StrCat("job '", ours.name, "' ");
  // This check comes first, because hosts that number their ranks differently also have
  // another number of workers.
  SYNCLINE_RETURN_IF_ERROR(CheckSameRanks(ours, theirs));
  if (ours.workers != theirs.workers) {
    return Differs(
        absl::StrCat(job, "has ", ours.workers, " workers, not ", theirs.workers));
  }
  if (const auto* setting = FindDifference(ours.settings, theirs.settings)) {
    return Differs(absl::StrCat(job, "has ", std::string(setting->name), " ",
                                Quoted(*setting, ours.settings), ", not ",
                                Quoted(*setting, theirs.settings)));
  }
  SYNCLINE_RETURN_IF_ERROR(
      CheckSameTraining(job, Canonical(ours.training), Canonical(theirs.training)));
  if (ours.tensors.size() != theirs.tensors.size()) {
    return Differs(absl::StrCat(job, "has ", ours.tensors.size(), " tensors, not ",
                                theirs.tensors.size()));
  }
  for (size_t i = 0; i < ours.tensors.size(); ++i) {
    const TensorSpec& a = ours.tensors[i];
    const TensorSpec& b = theirs.tensors[i];
    if (a.name != b.name) {
      return Differs(absl::StrCat(job, "has tensor '", a.name, "' at position ", i,
                                  ", not '", b.name, "'"));
    }
    if (a.shape != b.shape) {
      return Differs(absl::StrCat("tensor '", a.name, "' has shape ", Shape(a),
                                  " in job '", ours.name, "', not ", Shape(b)));
    }
    if (a.group != b.group) {
      return Differs(
          absl::StrCat("tensor '", a.name, "' has different group options in ", job));
    }
  }
  return absl::OkStatus();
}

}  // namespace syncline
