// Journals: a server writes the records of its shards to its disk, and reports up to which
// step they are there.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/status.h"
#include "comm/rpc/announcement.h"
#include "server/journal/restore.h"
#include "server/service/checkpoint_layout.h"
#include "server/service/server_node.h"
#include "server/shard/memory_plan.h"

namespace syncline {

namespace {

// Returns the bytes of state that each part has between two steps.
absl::StatusOr<std::vector<uint64_t>> StateBytesOf(
    const std::vector<EngineJobOptions>& parts, uint32_t workers) {
  std::vector<uint64_t> bytes;
  for (const EngineJobOptions& part : parts) {
    std::vector<BlockRange> blocks;
    for (const ShardBlock& block : part.blocks) blocks.push_back(block.range);
    const std::vector<uint32_t> here(blocks.size(), 0);
    SYNCLINE_ASSIGN_OR_RETURN(const MemoryPlan plan,
                              PlanMemory({.training = part.shard.training,
                                          .tensors = part.shard.tensors,
                                          .transfers = part.shard.transfers,
                                          .workers = workers},
                                         {.blocks = blocks, .shard_of_block = here}));
    bytes.push_back(plan.job.resident());
  }
  return bytes;
}

}  // namespace

absl::StatusOr<JournaledJob> ServerNode::DescribeJournal(
    const ConfigureJob& configure, const std::string& specification,
    std::vector<EngineJobOptions>& parts) {
  const JobSpec& spec = configure.declared->spec;
  JournaledJob job = {.job = configure.job, .is_fenced = spec.HasBackups()};
  job.head = {.job = spec.name,
              .specification = specification,
              .created_unix_ms = absl::ToUnixMillis(absl::Now()),
              .shard = configure.first_shard,
              .checkpoint_run = configure.checkpoint_run,
              .began_from = configure.resume_from};
  for (EngineJobOptions& part : parts) {
    part.is_fenced = spec.HasBackups();
    std::vector<uint32_t>& blocks = job.blocks.emplace_back();
    std::vector<uint32_t>& trained = job.trained.emplace_back();
    for (const ShardBlock& block : part.blocks) {
      blocks.push_back(block.block);
      const bool is_frozen = spec.tensors[block.range.tensor].group.frozen;
      if (!is_frozen) trained.push_back(block.block);
    }
  }
  SYNCLINE_ASSIGN_OR_RETURN(job.state_bytes, StateBytesOf(parts, spec.workers));
  return job;
}

absl::Status ServerNode::AddJournal(const ConfigureJob& configure,
                                    const std::string& specification,
                                    std::vector<EngineJobOptions>& parts) {
  const JobSpec& spec = configure.declared->spec;
  // A job that is restored from its journal gets a backup later.
  const bool has_backup = spec.HasBackups() && configure.restore_run.empty();
  for (EngineJobOptions& part : parts) {
    part.sends_records = has_backup;
    if (has_backup) part.shard.records = Records::kAwaited;
  }
  if (!spec.IsJournaled()) return absl::OkStatus();
  if (journal_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job '", spec.name, "' asks for durability=", spec.settings.durability,
        ", and server ", options_.name,
        " has no place for a journal; start all servers with --journal-dir, or the job "
        "with durability=none"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(JournaledJob job,
                            DescribeJournal(configure, specification, parts));
  // Jobs of modes that skip versions do not continue from a journal, so nobody has to wait
  // for it.
  const bool ends_here = spec.training.sync().skips_versions();
  for (EngineJobOptions& part : parts) {
    part.keeps_journal = true;
    part.shard.records = ends_here ? Records::kKept : Records::kAwaited;
  }
  if (!configure.restore_run.empty()) {
    if (job.is_fenced) {
      absl::MutexLock lock(&mutex_);
      machine_.ExpectBackup(configure.job);
    }
    return RestoreJournal(configure, std::move(job), parts);
  }
  // A journal that shards wait for can start over after a failure.
  job.may_begin_anew = !ends_here;
  const absl::Status begun = journal_->Begin(std::move(job));
  if (begun.ok()) return begun;
  return absl::FailedPreconditionError(absl::StrCat(
      "server ", options_.name, " has no place for the journal of job '", spec.name,
      "': ", std::string(begun.message()), "; check its --journal-dir"));
}

// ---- Journals beside backups (ADR 38) ----

absl::Status ServerNode::AddLaterJournal(const ConfigureJob& configure,
                                         const std::string& specification,
                                         std::vector<EngineJobOptions>& parts) {
  if (!configure.declared->spec.IsJournaled()) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(JournaledJob later,
                            DescribeJournal(configure, specification, parts));
  later.head.began_from.reset();
  later.may_begin_anew = later.begins_anew = true;
  absl::MutexLock lock(&mutex_);
  const auto share = shares_.find(configure.job);
  if (share != shares_.end()) share->second.later_journal = std::move(later);
  return absl::OkStatus();
}

void ServerNode::Perform(const BeginJournal& begin) {
  std::optional<JournaledJob> later;
  {
    absl::MutexLock lock(&mutex_);
    const auto share = shares_.find(begin.job);
    if (share != shares_.end()) later.swap(share->second.later_journal);
  }
  if (!later) return;
  later->run = begin.run;
  later->generation = begin.generation;
  // It starts over before it writes anything, and Begin touches no disk.
  journal_->Begin(*std::move(later)).IgnoreError();
}

void ServerNode::OnJournalEnded(uint32_t id) {
  const auto state = journal_->State(id);
  if (!state || !state->has_ended) return;  // it has started over since
  Report(JournalFailed{id, state->error, state->endings});
}

void ServerNode::Perform(const LoseJournal& journal) {
  options_.log.Error("the job goes on without a journal of this server",
                     {{"job", journal.job}});
  for (const auto& engine : engines_) engine->LoseJournal(journal.job);
}

void ServerNode::Perform(const AllowJournal& journal) {
  if (journal_ != nullptr) journal_->Allow(journal.job, journal.generation);
}

void ServerNode::OnJournalWhole(uint32_t id, uint32_t generation) {
  const auto state = journal_->State(id);
  if (!state || !state->error.empty()) return;  // it has ended again since
  Report(JournalCompleted{id, generation});
}

namespace {

// A run that is continued, while its shards are built.
struct RestoredRun {
  std::unique_ptr<RunRestore> run = {};
  JournaledJob job = {};
  size_t played = 0;
  uint64_t step = std::numeric_limits<uint64_t>::max();
};

}  // namespace

absl::Status ServerNode::RestoreJournal(const ConfigureJob& configure, JournaledJob job,
                                        std::vector<EngineJobOptions>& parts) {
  const JobSpec& spec = configure.declared->spec;
  RunRestoreOptions options = {.directory = options_.journal_directory,
                               .job = spec.name,
                               .run = configure.restore_run,
                               .generation = configure.generation,
                               .checkpoints = options_.checkpoints};
  for (uint32_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].blocks.empty()) options.shards.push_back(configure.first_shard + i);
  }
  SYNCLINE_ASSIGN_OR_RETURN(options.layout, LayoutOf(spec));
  auto restored = std::make_shared<RestoredRun>();
  SYNCLINE_ASSIGN_OR_RETURN(restored->run, RunRestore::Open(std::move(options)));
  const uint32_t first_shard = job.head.shard;
  job.head = restored->run->head();
  job.head.shard = first_shard;
  job.run = configure.restore_run;
  job.generation = configure.generation;
  job.tails.resize(parts.size());
  job.may_begin_anew = true;
  restored->job = std::move(job);
  const absl::Duration began = clock_.Now();
  for (uint32_t i = 0; i < parts.size(); ++i) {
    parts[i].load = [this, restored, began, i, id = configure.job,
                     blocks = parts[i].blocks](Shard& shard) -> absl::Status {
      JournaledJob& journaled = restored->job;
      if (!blocks.empty()) {
        SYNCLINE_ASSIGN_OR_RETURN(
            journaled.tails[i],
            restored->run->Play(journaled.head.shard + i, blocks, shard));
        for (const uint32_t block : journaled.trained[i]) {
          const uint64_t version = shard.block_version(block);
          journaled.tails[i].versions[block] = version;
          restored->step = std::min(restored->step, version);
        }
      }
      if (++restored->played < journaled.tails.size()) return absl::OkStatus();
      options_.log.Info("shards are as their journal says",
                        {{"job", id},
                         {"run", journaled.run},
                         {"step", restored->step},
                         {"seconds", absl::ToDoubleSeconds(clock_.Now() - began)}});
      {
        absl::MutexLock lock(&mutex_);
        const auto share = shares_.find(id);
        if (share != shares_.end()) share->second.restored_step = restored->step;
      }
      return journal_->Begin(std::move(journaled));
    };
  }
  return absl::OkStatus();
}

// The session key of each worker's incarnation is drawn at random, so no two runs have the
// same keys. The name shows only a digest of them.
void ServerNode::NameJournal(const AdmitMembers& epoch) {
  if (journal_ == nullptr) return;
  std::string members = absl::StrCat(epoch.job, " ", epoch.epoch);
  for (const MemberRecord& member : epoch.members) {
    absl::StrAppend(&members, " ", member.rank, " ", member.session_key);
  }
  journal_->Name(epoch.job, absl::BytesToHexString(Sha256(members).substr(0, 8)));
}

void ServerNode::RecordState(uint32_t job) {
  for (uint32_t i = 0; i < engines_.size(); ++i) {
    engines_[i]->RecordState(job, [this, job, i] { return journal_->BeginAnew(job, i); });
  }
}

void ServerNode::AddJournals(std::map<uint32_t, JobProgress>& jobs) const {
  if (journal_ == nullptr) return;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, share] : shares_) {
    const auto state = journal_->State(id);
    if (!state) continue;
    if (const auto progress = jobs.find(id); progress != jobs.end()) {
      RecordProgress records = {.durable_step = state->durable,
                                .lag_steps = state->lag(),
                                .bytes = state->bytes,
                                .error = state->error,
                                .disk_bytes = state->disk_bytes,
                                .begins_at = state->begins_at};
      const auto& backup = progress->second.records;
      const bool has_backup = backup && machine_.HasBackup(id);
      if (has_backup && !state->error.empty()) {
        records.durable_step = backup->durable_step;
        records.lag_steps = backup->lag_steps;
      } else if (has_backup) {  // a step is safe once both have it
        records.durable_step = std::min(records.durable_step, backup->durable_step);
        records.lag_steps = std::max(records.lag_steps, backup->lag_steps);
      }
      progress->second.records = std::move(records);
    }
    if (options_.metrics == nullptr) continue;
    options_.metrics->SetJournal(id, {.durable_step = state->durable,
                                      .lag_steps = state->lag(),
                                      .bytes = state->bytes,
                                      .disk_bytes = state->disk_bytes,
                                      .begins_at = state->begins_at,
                                      .snapshots = state->snapshots,
                                      .has_failed = !state->error.empty()});
  }
}

}  // namespace syncline
