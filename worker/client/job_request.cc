#include "worker/client/job_request.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/base/tiling.h"
#include "comm/codec/codec.h"
#include "comm/rpc/attach_stream.h"

namespace syncline {
namespace {

std::string ProcessName() {
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  return absl::StrCat(host, ":", getpid());
}

void FillOptimizer(const OptimizerOptions& options, v1::OptimizerSpec& spec) {
  spec.set_name(options.name);
  spec.set_learning_rate(options.learning_rate);
  spec.set_weight_decay(options.weight_decay);
  spec.set_momentum(options.momentum);
  spec.set_dampening(options.dampening);
  spec.set_nesterov(options.nesterov == OptimizerOptions::Nesterov::kOn);
  spec.set_beta1(options.beta1);
  spec.set_beta2(options.beta2);
  spec.set_epsilon(options.epsilon);
}

// kMaxTensorElements + 1 when there are more.
uint64_t CountElements(const std::vector<uint64_t>& shape) {
  uint64_t elements = 1;
  for (const uint64_t size : shape) {
    const bool overflows = size != 0 && elements > kMaxTensorElements / size;
    elements = overflows ? kMaxTensorElements + 1 : elements * size;
  }
  return elements;
}

}  // namespace

absl::Status CheckSessionOptions(const SessionOptions& options) {
  const CodecRegistry codecs = CodecRegistry::Builtin();
  if (options.job.empty() || options.job.size() > kMaxJobNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("job name must have 1 to ", kMaxJobNameBytes, " bytes"));
  }
  if (options.world_size < 1 || options.world_size > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("world_size is ", options.world_size,
                                                   ", allowed are 1 to ", kMaxWorkers));
  }
  if (options.rank >= kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", options.rank, ", allowed are 0 to ", kMaxWorkers - 1));
  }
  SYNCLINE_RETURN_IF_ERROR(codecs.FindByName(options.push_codec).status());
  SYNCLINE_RETURN_IF_ERROR(codecs.FindByName(options.publish_codec).status());
  return Timeouts::Validate(options.failure_timeout);
}

absl::Status CheckTensor(const TensorOptions& tensor, size_t elements) {
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor's name must have 1 to ", kMaxTensorNameBytes, " bytes"));
  }
  if (CountElements(tensor.shape) == elements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' of shape [",
                                                 absl::StrJoin(tensor.shape, ", "),
                                                 "] comes with ", elements, " weights"));
}

v1::MemberMessage MakeHello(const SessionOptions& options,
                            const std::vector<TensorOptions>& tensors) {
  v1::MemberMessage message;
  v1::WorkerHello& hello = *message.mutable_worker_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_build_version(SYNCLINE_VERSION);
  hello.set_rank(options.rank);
  hello.set_run_id(options.run_id);
  hello.set_name(ProcessName());
  v1::JobSpec& job = *hello.mutable_job();
  job.set_name(options.job);
  job.set_workers(options.world_size);
  job.set_push_codec(options.push_codec);
  job.set_publish_codec(options.publish_codec);
  FillOptimizer(options.optimizer, *job.mutable_optimizer());
  job.set_clip_global_norm(options.clip_global_norm);
  job.set_skip_nonfinite_steps(options.nonfinite_steps == NonfiniteSteps::kSkip);
  for (const TensorOptions& tensor : tensors) {
    v1::TensorSpec& spec = *job.add_tensors();
    spec.set_name(tensor.name);
    for (const uint64_t size : tensor.shape) spec.add_shape(size);
    spec.set_learning_rate_scale(tensor.learning_rate_scale);
    if (tensor.weight_decay) spec.set_weight_decay(*tensor.weight_decay);
  }
  return message;
}

absl::Status CheckPlacement(const v1::WorkerWelcome& welcome,
                            const std::vector<uint64_t>& elements) {
  const auto& placement = welcome.shard_of_block();
  const auto shards = static_cast<uint32_t>(welcome.shard_addresses_size());
  const bool fits =
      static_cast<size_t>(placement.size()) == CutIntoBlocks(elements).size() &&
      std::all_of(placement.begin(), placement.end(),
                  [shards](uint32_t shard) { return shard < shards; });
  if (fits) return absl::OkStatus();
  return absl::InternalError(
      "the coordinator's placement does not fit the declared tensors");
}

}  // namespace syncline
