#include "worker/client/job_request.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/host_name.h"
#include "comm/base/limits.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/base/sync_mode.h"
#include "comm/base/tiling.h"
#include "comm/compression/residual_rate.h"
#include "comm/rpc/announcement.h"
#include "comm/rpc/job_settings_proto.h"
#include "worker/client/codec_threads.h"
#include "worker/client/presets.h"

namespace syncline {
namespace {

template <typename Repeated>
void FillOptions(const OptionValues& values, Repeated& options) {
  for (const auto& [name, value] : values) {
    v1::Option& option = *options.Add();
    option.set_name(name);
    option.set_value(value);
  }
}

void FillNamed(const NamedOptions& from, v1::NamedOptions& to) {
  to.set_name(from.name);
  FillOptions(from.values, *to.mutable_options());
}

// Replaces the learning rate and the schedule by a sweep through absolute rates.
TrainingOptions WithRange(TrainingOptions training,
                          const SessionOptions::LearningRateRange& range) {
  training.optimizer.values["lr"] = 1;
  training.schedule = {.name = "range_test",
                       .values = {{"first_factor", range.first},
                                  {"last_factor", range.last},
                                  {"total_steps", static_cast<double>(range.steps)}}};
  return training;
}

void FillTraining(const TrainingOptions& from, v1::TrainingSpec& to) {
  FillNamed(from.optimizer, *to.mutable_optimizer());
  to.set_state(from.state);
  FillNamed(from.schedule, *to.mutable_schedule());
  FillOptions(from.gradient, *to.mutable_gradient());
  FillNamed(from.loss_scaling, *to.mutable_loss_scaling());
  to.set_skip_nonfinite_steps(from.nonfinite_steps ==
                              TrainingOptions::NonfiniteSteps::kSkip);
  const bool on_server = from.accumulate_on == TrainingOptions::Accumulate::kServer;
  to.set_accumulate_steps(on_server ? from.accumulate_steps : 1);
  to.set_aggregate_on_arrival(from.aggregation == TrainingOptions::Aggregation::kArrival);
  FillNamed(from.mode, *to.mutable_mode());
}

// Returns the number of elements, or kMaxTensorElements + 1 if there are more than
// kMaxTensorElements.
uint64_t CountElements(const std::vector<uint64_t>& shape) {
  uint64_t elements = 1;
  for (const uint64_t size : shape) {
    const bool overflows = size != 0 && elements > kMaxTensorElements / size;
    elements = overflows ? kMaxTensorElements + 1 : elements * size;
  }
  return elements;
}

// Checks the options of a job whose workers are whole hosts.
absl::Status CheckHosts(const SessionOptions& options) {
  if (options.ranks < options.world_size || options.ranks > kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks is ", options.ranks, ", allowed are ", options.world_size,
                     ", the job's hosts (world_size), to ", kMaxWorkers));
  }
  if (options.training.accumulate_steps > 1) {
    return absl::InvalidArgumentError(
        "accumulate_steps is not for local aggregation: accumulate in no_sync()");
  }
  return CheckLocalAggregation(options.training.mode);
}

}  // namespace

bool FollowsLearningRate(const TrainingOptions& training) {
  return ResidualsFollowRate(training.optimizer.name, training.gradient);
}

bool TakesTensorsApart(const TrainingOptions& training) {
  return training.optimizer.name != "lbfgs";
}

std::vector<std::string> SessionWarnings(const SessionOptions& options) {
  std::vector<std::string> warnings;
  const NamedOptions& optimizer = options.training.optimizer;
  const auto rate = optimizer.values.find("lr");
  if (optimizer.name == "lbfgs" && rate != optimizer.values.end() && rate->second < 1) {
    warnings.push_back(absl::StrCat(
        "optimizer lbfgs with lr ", rate->second,
        ": steps below 1 rarely bring a pair with enough curvature when gradients come "
        "from samples, and weights then hardly move after the first step; set lr=1 and "
        "push gradients of large batches, or take another optimizer"));
  }
  return warnings;
}

absl::Status CheckSessionOptions(const SessionOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(CheckName("the job's name", options.job, kMaxJobNameBytes));
  if (!options.run_id.empty()) {
    SYNCLINE_RETURN_IF_ERROR(CheckName("the run id", options.run_id, kMaxJobNameBytes));
  }
  if (options.world_size < 1 || options.world_size > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("world_size is ", options.world_size,
                                                   ", allowed are 1 to ", kMaxWorkers));
  }
  if (options.rank >= kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", options.rank, ", allowed are 0 to ", kMaxWorkers - 1));
  }
  if (options.codec_threads.value_or(0) > kMaxCodecThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec_threads is ", *options.codec_threads, ", allowed are 0 to ",
                     kMaxCodecThreads));
  }
  if (options.training.accumulate_steps < 1) {
    return absl::InvalidArgumentError("accumulate_steps is 0, but must be 1 or more");
  }
  SYNCLINE_RETURN_IF_ERROR(ParseSyncMode(options.training.mode).status());
  SYNCLINE_RETURN_IF_ERROR(CheckRounds(options));
  if (options.ranks > 0) SYNCLINE_RETURN_IF_ERROR(CheckHosts(options));
  SYNCLINE_RETURN_IF_ERROR(CheckJobSettings(options.settings));
  return Timeouts::Validate(options.failure_timeout);
}

absl::Status CheckTensor(const TensorOptions& tensor, size_t elements) {
  SYNCLINE_RETURN_IF_ERROR(
      CheckName("a tensor's name", tensor.name, kMaxTensorNameBytes));
  if (CountElements(tensor.shape) == elements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' of shape [",
                                                 absl::StrJoin(tensor.shape, ", "),
                                                 "] comes with ", elements, " weights"));
}

absl::StatusOr<size_t> CheckTensor(const TensorOptions& tensor) {
  const uint64_t elements = CountElements(tensor.shape);
  if (elements > kMaxTensorElements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", tensor.name, "' of shape [", absl::StrJoin(tensor.shape, ", "),
        "] has more than ", kMaxTensorElements, " elements"));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckTensor(tensor, elements));
  return elements;
}

Announcement MakeAnnouncement(const SessionOptions& options,
                              const std::vector<TensorOptions>& tensors) {
  v1::JobSpec job;
  job.set_name(options.job);
  job.set_workers(options.world_size);
  job.set_ranks(options.ranks);
  ToProto(options.settings, job);
  const auto& range = options.learning_rate_range;
  FillTraining(range ? WithRange(options.training, *range) : options.training,
               *job.mutable_training());
  for (const TensorOptions& tensor : tensors) {
    v1::TensorSpec& spec = *job.add_tensors();
    spec.set_name(tensor.name);
    for (const uint64_t size : tensor.shape) spec.add_shape(size);
    spec.set_learning_rate_scale(tensor.learning_rate_scale);
    FillOptions(tensor.options, *spec.mutable_options());
    spec.set_state(tensor.state);
    spec.set_frozen(tensor.frozen);
  }
  return Announce(job, {.rank = options.rank,
                        .run_id = options.run_id,
                        .name = ProcessName(),
                        .failure_timeout = options.failure_timeout,
                        .rejoins = options.rejoins});
}

absl::StatusOr<JobLayout> ReadLayout(const v1::WorkerWelcome& welcome,
                                     const std::vector<uint64_t>& elements) {
  v1::Placement placement;
  v1::ShardAddresses shards;
  const bool parsed = placement.ParseFromString(welcome.placement()) &&
                      shards.ParseFromString(welcome.shard_addresses());
  const auto count = static_cast<uint32_t>(shards.addresses_size());
  const auto& blocks = placement.shard_of_block();
  const bool fits =
      parsed && static_cast<size_t>(blocks.size()) == CutIntoBlocks(elements).size() &&
      std::ranges::all_of(blocks, [&](uint32_t shard) { return shard < count; });
  if (!fits) {
    return absl::InternalError(
        "the coordinator's placement does not fit the declared tensors");
  }
  return JobLayout{
      .shard_addresses = {shards.addresses().begin(), shards.addresses().end()},
      .shard_of_block = {blocks.begin(), blocks.end()}};
}

}  // namespace syncline
