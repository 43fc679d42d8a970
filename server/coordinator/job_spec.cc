#include "server/coordinator/job_spec.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/failure.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr std::array<std::string_view, 2> kCodecNames = {"fp32", "bf16"};

absl::Status CheckCodec(absl::string_view setting, const std::string& name) {
  if (std::find(kCodecNames.begin(), kCodecNames.end(), name) != kCodecNames.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(setting, " '", name, "' is unknown; did you mean '",
                   std::string(NearestName(name, kCodecNames)), "'?"));
}

absl::Status CheckTensor(const TensorSpec& tensor) {
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor's name must have 1 to ", kMaxTensorNameBytes, " bytes"));
  }
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
  const absl::Status group = ValidateGroup(tensor.group);
  if (group.ok()) return group;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", tensor.name, "': ", std::string(group.message())));
}

absl::Status Differs(absl::string_view what) {
  return WithFailure(
      absl::FailedPreconditionError(absl::StrCat(
          what,
          "; every worker of a job must declare the same, or choose another --job")),
      Failure::kJobRefused);
}

std::string Shape(const TensorSpec& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]");
}

bool SameOptimizer(const OptimizerSettings& a, const OptimizerSettings& b) {
  return a.name == b.name && a.learning_rate == b.learning_rate &&
         a.weight_decay == b.weight_decay && a.momentum == b.momentum &&
         a.dampening == b.dampening && a.nesterov == b.nesterov && a.beta1 == b.beta1 &&
         a.beta2 == b.beta2 && a.epsilon == b.epsilon;
}

}  // namespace

uint64_t TensorSpec::elements() const {
  uint64_t elements = 1;
  for (const uint64_t size : shape) elements *= size;
  return elements;
}

std::vector<BlockRange> JobSpec::Blocks() const {
  std::vector<uint64_t> elements;
  for (const TensorSpec& tensor : tensors) elements.push_back(tensor.elements());
  return CutIntoBlocks(elements);
}

absl::Status ValidateJob(const JobSpec& spec) {
  if (spec.name.empty() || spec.name.size() > kMaxJobNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job's name must have 1 to ", kMaxJobNameBytes, " bytes"));
  }
  if (spec.workers < 1 || spec.workers > kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("job '", spec.name, "' wants ", spec.workers,
                     " workers, allowed are 1 to ", kMaxWorkers));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckCodec("push_codec", spec.push_codec));
  SYNCLINE_RETURN_IF_ERROR(CheckCodec("publish_codec", spec.publish_codec));
  SYNCLINE_RETURN_IF_ERROR(ValidateSettings(spec.optimizer));
  if (!(spec.clip_global_norm >= 0 && spec.clip_global_norm <= 1e30)) {
    return absl::InvalidArgumentError(
        absl::StrCat("clip_global_norm is ", spec.clip_global_norm,
                     ", allowed are 0 (off) and positive numbers"));
  }
  if (spec.tensors.empty() || spec.tensors.size() > kMaxTensorsPerJob) {
    return absl::InvalidArgumentError(
        absl::StrCat("job '", spec.name, "' has ", spec.tensors.size(),
                     " tensors, allowed are 1 to ", kMaxTensorsPerJob));
  }
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : spec.tensors) {
    SYNCLINE_RETURN_IF_ERROR(CheckTensor(tensor));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two tensors are named '", tensor.name, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSameJob(const JobSpec& ours, const JobSpec& theirs) {
  const std::string job = absl::StrCat("job '", ours.name, "' ");
  if (ours.workers != theirs.workers) {
    return Differs(
        absl::StrCat(job, "has ", ours.workers, " workers, not ", theirs.workers));
  }
  if (ours.push_codec != theirs.push_codec ||
      ours.publish_codec != theirs.publish_codec) {
    return Differs(absl::StrCat(job, "uses codecs ", ours.push_codec, " and ",
                                ours.publish_codec, ", not ", theirs.push_codec, " and ",
                                theirs.publish_codec));
  }
  if (!SameOptimizer(ours.optimizer, theirs.optimizer)) {
    return Differs(absl::StrCat(job, "uses other optimizer settings (",
                                ours.optimizer.name, ", learning rate ",
                                ours.optimizer.learning_rate, ")"));
  }
  if (ours.clip_global_norm != theirs.clip_global_norm ||
      ours.skip_nonfinite_steps != theirs.skip_nonfinite_steps) {
    return Differs(absl::StrCat(job, "clips or skips steps differently"));
  }
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
      return Differs(absl::StrCat("tensor '", a.name, "' is ", Shape(a), " in ", job,
                                  "and not ", Shape(b)));
    }
    if (a.group.learning_rate_scale != b.group.learning_rate_scale ||
        a.group.weight_decay != b.group.weight_decay) {
      return Differs(
          absl::StrCat("tensor '", a.name, "' has other group options in ", job));
    }
  }
  return absl::OkStatus();
}

}  // namespace syncline
