// Backups in memory (ADR 29): a server sends its records to its own backup, and starts
// stand-ins that hold the backups of others. A stand-in is a ServerNode, too.
#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "server/service/job_convert.h"
#include "server/service/server_node.h"

namespace syncline {

// ---- A server ----

void ServerNode::Perform(const StartStandIn& stand_in) {
  absl::MutexLock lock(&mutex_);
  asked_.push_back(stand_in.hold);
  changed_.SignalAll();
}

void ServerNode::Hold(const HoldBackup& hold) {
  ServerNodeOptions options = options_;
  options.name =
      absl::StrCat(options_.name, hold.restores ? "/place-" : "/backup-", hold.order);
  options.engines = hold.engines;
  options.memory_bytes = 0;  // the coordinator has counted it
  options.metrics = nullptr;
  if (!hold.has_journal) options.journal_directory.clear();
  options.stand_in = {hold.job, hold.server, hold.order};
  options.log = options_.log.With({{"stands_in_for", hold.server}});
  // A disk that loses data ends the whole process.
  auto node = Start(options, {.on_given_up = events_.on_given_up});
  if (node.ok()) {
    stand_ins_.push_back(*std::move(node));
    return;
  }
  absl::MutexLock lock(&mutex_);
  outbox_.push_back(ConfigureFailed{hold.job, node.status()});
}

void ServerNode::TendStandIns() {
  std::vector<HoldBackup> asked;
  {
    absl::MutexLock lock(&mutex_);
    asked = std::exchange(asked_, {});
  }
  for (const HoldBackup& hold : asked) Hold(hold);
  for (auto& node : stand_ins_) {
    if (node->has_ended()) End(std::move(node));
  }
  std::erase(stand_ins_, nullptr);
  std::erase_if(endings_, [](const std::future<void>& ending) {
    return ending.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  absl::MutexLock lock(&mutex_);
  stand_in_count_ = stand_ins_.size();
}

// Destroying a node waits for its journal's disk, which may take long, or hang. The thread
// that sends heartbeats must not wait for it.
void ServerNode::End(std::unique_ptr<ServerNode> node) {
  endings_.push_back(std::async(std::launch::async,
                                [node = std::move(node)]() mutable { node.reset(); }));
}

bool ServerNode::has_ended() const {
  absl::MutexLock lock(&mutex_);
  return has_ended_;
}

void ServerNode::Perform(const SendRecords& records) {
  const BackupAt& at = records.at;
  const auto since =
      at.with_state ? Engine::Backups::kWithState : Engine::Backups::kFromTheFirst;
  for (size_t i = 0; i < engines_.size(); ++i) {
    engines_[i]->SendRecords(at.job, at.addresses[i], at.pair, since);
  }
}

void ServerNode::Perform(const StopRecords& records) {
  // 0: without any.
  if (records.session_key == 0) {
    options_.log.Error("the job goes on without a backup of this server",
                       {{"job", records.job}, {"reason", records.reason}});
  }
  for (const auto& engine : engines_) {
    engine->StopRecords(records.job, records.session_key);
  }
}

void ServerNode::AddBackups(const std::map<uint32_t, RecordSender::Progress>& progress,
                            std::map<uint32_t, JobProgress>& jobs) const {
  for (const auto& [job, at] : progress) {
    const uint64_t lag = at.taken - std::min(at.taken, at.durable);
    jobs[job].records = {.durable_step = at.durable, .lag_steps = lag, .bytes = at.bytes};
    if (options_.metrics == nullptr) continue;
    options_.metrics->SetBackup(job, {.durable_step = at.durable, .lag_steps = lag});
  }
}

// ---- The end of the process ----

void ServerNode::Drain() {
  absl::MutexLock lock(&mutex_);
  Queue(machine_.Report(DrainAsked{.stand_ins = stand_in_count_}));
}

bool ServerNode::has_drained() const {
  absl::MutexLock lock(&mutex_);
  return machine_.has_drained();
}

// ---- A stand-in ----

void ServerNode::ConfigureBackup(uint64_t order,
                                 const std::shared_ptr<const v1::ConfigureJob>& message) {
  const uint32_t job = message->job();
  const auto read = std::make_shared<ConfigureJob>();
  builder_->Build(
      {.job = job,
       .split = [this, message, read]() -> absl::StatusOr<std::vector<EngineJobOptions>> {
         SYNCLINE_ASSIGN_OR_RETURN(*read, FromProto(*message));
         SYNCLINE_ASSIGN_OR_RETURN(auto parts, SplitJob(*read));
         SYNCLINE_RETURN_IF_ERROR(AddCheckpoints(*read, parts));
         SYNCLINE_RETURN_IF_ERROR(AddLaterJournal(*read, message->spec(), parts));
         return parts;
       },
       .done = [this, job,
                order](const absl::Status& status) { OnBuilt(job, order, status); },
       .keep =
           [this, read](std::vector<EngineJob> parts) {
             KeepBackup(*read, std::move(parts));
           }});
}

void ServerNode::KeepBackup(const ConfigureJob& configure, std::vector<EngineJob> parts) {
  const uint32_t job = configure.job;
  const JobSpec& spec = configure.declared->spec;
  const std::vector<BlockRange> ranges = spec.Blocks();
  std::vector<std::vector<uint32_t>> trained(parts.size());
  for (uint32_t block = 0; block < ranges.size(); ++block) {
    const uint64_t engine =
        uint64_t{configure.placement->shard_of_block[block]} - configure.first_shard;
    const bool is_frozen = spec.tensors[ranges[block].tensor].group.frozen;
    if (engine < parts.size() && !is_frozen) trained[engine].push_back(block);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    Engine* const engine = engines_[i].get();
    BackupShardOptions options = {
        .trained = std::move(trained[i]),
        .has_seeds = !configure.resume_from,
        .whose = absl::StrCat("what server ", configure.backup->sender.server, " has"),
        .on_room = [engine, job] { engine->Acknowledge(job); },
        .on_lost =
            [this, job](const absl::Status& why) {
              Report(BackupFailed{.job = job, .why = std::string(why.message())});
            }};
    backup_.push_back(
        std::make_unique<BackupShard>(std::move(options), std::move(parts[i])));
    engine->TakeRecords(job, *configure.backup,
                        [shard = backup_.back().get()](std::vector<std::byte> record) {
                          return shard->Take(std::move(record));
                        });
  }
}

void ServerNode::Perform(const FinishBackup& finish) {
  const uint32_t id = finish.job;
  {
    absl::MutexLock lock(&mutex_);
    const auto share = shares_.find(id);
    if (share != shares_.end()) share->second.order = finish.order;
  }
  builder_->Build(
      {.job = id,
       .done = [this, id, order = finish.order](
                   const absl::Status& status) { OnBuilt(id, order, status); },
       .made = [this, id] { return PlayBackup(id); }});
}

// From here on the dead server gets no acknowledgement: if it is alive, it can tell nobody
// anything new.
absl::StatusOr<std::vector<EngineJob>> ServerNode::PlayBackup(uint32_t id) {
  for (const auto& engine : engines_) engine->StopTaking(id);
  std::vector<EngineJob> parts;
  uint64_t step = std::numeric_limits<uint64_t>::max();
  for (const auto& shard : backup_) {
    SYNCLINE_ASSIGN_OR_RETURN(BackupShard::Finished finished, shard->Finish());
    step = std::min(step, finished.step);
    parts.push_back(std::move(finished.part));
  }
  backup_.clear();
  if (parts.size() != engines_.size()) {
    return absl::FailedPreconditionError("there is no backup of that job");
  }
  options_.log.Warning("the backup takes over", {{"job", id}, {"step", step}});
  absl::MutexLock lock(&mutex_);
  const auto share = shares_.find(id);
  if (share != shares_.end()) share->second.restored_step = step;
  return parts;
}

}  // namespace syncline
