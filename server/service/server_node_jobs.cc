// How a server comes to a job: what each engine gets of it, within its memory.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/job_seed.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "server/coordinator/admission.h"
#include "server/service/job_convert.h"
#include "server/service/server_node.h"

namespace syncline {

void ServerNode::Configure(const v1::ConfigureJob& configure) {
  const uint32_t job = configure.job();
  {
    absl::MutexLock lock(&mutex_);
    jobs_[job] = Job();
    jobs_[job].first_shard = configure.first_shard();
  }
  options_.log.Info(
      "job begins",
      {{"job", job}, {"name", std::string_view(Printable(configure.name()))}});
  if (options_.metrics != nullptr) options_.metrics->NameJob(job, configure.name());
  const auto message = std::make_shared<const v1::ConfigureJob>(configure);
  if (configure.has_backup()) return ConfigureBackup(message);
  builder_->Build(
      {.job = job,
       .split = [this, message]() -> absl::StatusOr<std::vector<EngineJobOptions>> {
         SYNCLINE_ASSIGN_OR_RETURN(const ConfigureJob read, FromProto(*message));
         SYNCLINE_ASSIGN_OR_RETURN(auto parts, SplitJob(read));
         SYNCLINE_RETURN_IF_ERROR(TakeMemory(read, parts));
         SYNCLINE_RETURN_IF_ERROR(AddCheckpoints(read, parts));
         SYNCLINE_RETURN_IF_ERROR(AddJournal(read, message->spec(), parts));
         return parts;
       },
       .done = [this, job](const absl::Status& status) { OnBuilt(job, status); }});
}

void ServerNode::OnBuilt(uint32_t job, const absl::Status& status) {
  if (!status.ok()) {
    options_.log.Warning("job cannot be served",
                         {{"job", job}, {"error", std::string(status.message())}});
  }
  absl::MutexLock lock(&mutex_);
  if (!jobs_.contains(job)) return;
  if (status.ok()) {
    outbox_.push_back(JobConfigured{job, jobs_.at(job).restored_step});
    if (jobs_.at(job).lacks_backup) {
      for (const auto& engine : engines_) engine->StopRecords(job);
    }
  } else {
    if (options_.metrics != nullptr) options_.metrics->ForgetJob(job);
    jobs_.erase(job);
    outbox_.push_back(ConfigureFailed{job, status});
  }
  ShowMemory();
  changed_.SignalAll();
}

// What each engine gets of a job.
absl::StatusOr<std::vector<EngineJobOptions>> ServerNode::SplitJob(
    const ConfigureJob& configure) const {
  const JobSpec& spec = configure.declared->spec;
  const std::vector<uint32_t>& shard_of_blocks = configure.placement->shard_of_block;
  const std::vector<BlockRange> ranges = spec.Blocks();
  if (ranges.size() != shard_of_blocks.size()) {
    return absl::InternalError(absl::StrCat("job '", spec.name, "' has ", ranges.size(),
                                            " blocks, but the coordinator places ",
                                            shard_of_blocks.size()));
  }
  ShardOptions shard = {.job = configure.job, .seed = JobSeed(spec.name)};
  SYNCLINE_ASSIGN_OR_RETURN(shard.transfers, spec.Transfers());
  SYNCLINE_ASSIGN_OR_RETURN(shard.seed_codec, codecs_.Find(CodecId::kFp32));
  shard.training = spec.training;
  shard.tensors = spec.Trained();
  std::vector<EngineJobOptions> parts(engines_.size(), EngineJobOptions{shard, {}});
  for (uint32_t i = 0; i < parts.size(); ++i) {
    parts[i].shard.shard = configure.first_shard + i;
  }
  for (uint32_t block = 0; block < ranges.size(); ++block) {
    const uint32_t shard_of_block = shard_of_blocks[block];
    const uint64_t engine = uint64_t{shard_of_block} - configure.first_shard;
    if (engine >= parts.size()) continue;  // another server's
    parts[engine].blocks.push_back({block, ranges[block]});
  }
  return parts;
}

// The coordinator has planned the same; a server does not take its word for it.
absl::Status ServerNode::TakeMemory(const ConfigureJob& configure,
                                    const std::vector<EngineJobOptions>& parts) {
  const ShardOptions& shard = parts.front().shard;
  std::vector<BlockRange> blocks;
  for (const EngineJobOptions& part : parts) {
    for (const ShardBlock& block : part.blocks) blocks.push_back(block.range);
  }
  const std::vector<uint32_t> here(blocks.size(), 0);
  SYNCLINE_ASSIGN_OR_RETURN(const MemoryPlan plan,
                            PlanMemory({.training = shard.training,
                                        .tensors = shard.tensors,
                                        .transfers = shard.transfers,
                                        .workers = configure.declared->spec.workers},
                                       {.blocks = blocks, .shard_of_block = here}));
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(configure.job);
  if (job == jobs_.end()) return absl::CancelledError("the job was dropped");
  ServerMemory memory = {.name = options_.name, .budget_bytes = options_.memory_bytes};
  for (const auto& [id, other] : jobs_) {
    if (id != configure.job) memory.placed_bytes += other.memory_bytes;
  }
  SYNCLINE_RETURN_IF_ERROR(CheckMemory(configure.declared->spec.name, plan.job, memory));
  job->second.memory_bytes = plan.job.total();
  job->second.use = plan.job;
  job->second.staleness = shard.training.sync().staleness;
  return absl::OkStatus();
}

// Of a larger staleness, which the coordinator has found room for.
void ServerNode::TakeMemoryFor(Job& job, const SyncMode& mode) {
  const MemoryUse use =
      UseAfter(job.use, {.planned = job.staleness, .staleness = mode.staleness});
  job.memory_bytes = std::max(job.memory_bytes, use.total());
  ShowMemory();
}

void ServerNode::ShowMemory() const {
  uint64_t placed = 0;
  for (const auto& [id, job] : jobs_) placed += job.memory_bytes;
  if (saver_ != nullptr && options_.memory_bytes > 0) {
    saver_->Limit(options_.memory_bytes - std::min(placed, options_.memory_bytes));
  }
  if (options_.metrics == nullptr) return;
  options_.metrics->SetServerMemory(options_.memory_bytes, placed);
}

}  // namespace syncline
