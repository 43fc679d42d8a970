// How a server begins a job: which blocks each engine gets, and whether they fit into its
// memory.
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
    shares_[job] = {.message = std::make_shared<const v1::ConfigureJob>(configure)};
  }
  options_.log.Info(
      "job begins",
      {{"job", job}, {"name", std::string_view(Printable(configure.name()))}});
  if (options_.metrics != nullptr) options_.metrics->NameJob(job, configure.name());
  Apply(JobOrder{.job = job,
                 .first_shard = configure.first_shard(),
                 .holds_backup = configure.has_backup()});
}

void ServerNode::Perform(const BuildShards& build) {
  std::shared_ptr<const v1::ConfigureJob> message;
  {
    absl::MutexLock lock(&mutex_);
    const auto share = shares_.find(build.job);
    if (share == shares_.end()) return;  // the link was lost
    message = std::exchange(share->second.message, nullptr);
    share->second.order = build.order;
  }
  if (build.holds_backup) return ConfigureBackup(build.order, message);
  builder_->Build(
      {.job = build.job,
       .split = [this, message]() -> absl::StatusOr<std::vector<EngineJobOptions>> {
         SYNCLINE_ASSIGN_OR_RETURN(const ConfigureJob read, FromProto(*message));
         SYNCLINE_ASSIGN_OR_RETURN(auto parts, SplitJob(read));
         SYNCLINE_RETURN_IF_ERROR(TakeMemory(read, parts));
         SYNCLINE_RETURN_IF_ERROR(AddCheckpoints(read, parts));
         SYNCLINE_RETURN_IF_ERROR(AddJournal(read, message->spec(), parts));
         return parts;
       },
       .done = [this, job = build.job, order = build.order](
                   const absl::Status& status) { OnBuilt(job, order, status); }});
}

void ServerNode::OnBuilt(uint32_t job, uint64_t order, const absl::Status& status) {
  if (!status.ok()) {
    options_.log.Warning("job cannot be served",
                         {{"job", job}, {"error", std::string(status.message())}});
  }
  ShardsBuilt built = {.job = job, .order = order, .status = status};
  {
    absl::MutexLock lock(&mutex_);
    const auto share = shares_.find(job);
    // The job may have been dropped, or ordered again, meanwhile.
    if (share == shares_.end() || share->second.order != order) return;
    built.step = share->second.restored_step;
    if (!status.ok()) {
      if (options_.metrics != nullptr) options_.metrics->ForgetJob(job);
      shares_.erase(share);
    }
    ShowMemory();
  }
  Apply(built);
}

// Returns each engine's part of the job.
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
    if (engine >= parts.size()) continue;  // the block is another server's
    parts[engine].blocks.push_back({block, ranges[block]});
  }
  return parts;
}

// The coordinator has planned the same; the server checks it again.
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
  const auto share = shares_.find(configure.job);
  if (share == shares_.end()) return absl::CancelledError("the job was dropped");
  ServerMemory memory = {.name = options_.name, .budget_bytes = options_.memory_bytes};
  for (const auto& [id, other] : shares_) {
    if (id != configure.job) memory.placed_bytes += other.memory_bytes;
  }
  SYNCLINE_RETURN_IF_ERROR(CheckMemory(configure.declared->spec.name, plan.job, memory));
  share->second.memory_bytes = plan.job.total();
  share->second.use = plan.job;
  share->second.staleness = shard.training.sync().staleness;
  return absl::OkStatus();
}

// The coordinator has found room for a larger staleness.
void ServerNode::TakeMemoryFor(uint32_t job, const SyncMode& mode) {
  absl::MutexLock lock(&mutex_);
  const auto share = shares_.find(job);
  if (share == shares_.end()) return;
  Share& planned = share->second;
  const MemoryUse use =
      UseAfter(planned.use, {.planned = planned.staleness, .staleness = mode.staleness});
  planned.memory_bytes = std::max(planned.memory_bytes, use.total());
  ShowMemory();
}

void ServerNode::ShowMemory() const {
  uint64_t placed = 0;
  for (const auto& [id, share] : shares_) placed += share.memory_bytes;
  if (saver_ != nullptr && options_.memory_bytes > 0) {
    saver_->Limit(options_.memory_bytes - std::min(placed, options_.memory_bytes));
  }
  if (options_.metrics == nullptr) return;
  options_.metrics->SetServerMemory(options_.memory_bytes, placed);
}

}  // namespace syncline
