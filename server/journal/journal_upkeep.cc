// What happens to a journal apart from writing: one that has ended starts over, one that
// goes on takes snapshots, and segments that are superseded or covered by a checkpoint
// are deleted.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "server/checkpoint/reader.h"
#include "server/journal/folder.h"
#include "server/journal/journal.h"

namespace syncline {
namespace {

// A disk with room for fewer segments counts as full.
constexpr uint64_t kRoomSegments = 2;

}  // namespace

absl::Status CheckSnapshotFactor(double factor) {
  if (factor == 0 || (factor >= 1 && factor <= 1000)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      factor, " is not allowed: 0 for no snapshots, or 1 to 1000 times the state"));
}

void Journal::ShowSize(Job& job) {
  JournalState size;
  for (const ShardLog& shard : job.shards) {
    size.bytes += shard.bytes();
    size.disk_bytes += shard.disk_bytes();
    size.begins_at = std::max(size.begins_at, shard.anew_version());
  }
  absl::MutexLock lock(&mutex_);
  job.state.bytes = size.bytes;
  job.state.disk_bytes = size.disk_bytes;
  job.state.begins_at = size.begins_at;
}

// ---- Snapshots ----

void Journal::FinishSnapshots(Job& job) {
  for (ShardLog& shard : job.shards) {
    const absl::StatusOr<bool> is_done = shard.FinishSnapshot();
    if (!is_done.ok()) return Fail(job, is_done.status());
    if (!*is_done) continue;
    shard.DeleteSuperseded();
    absl::MutexLock lock(&mutex_);
    ++job.state.snapshots;
  }
}

void Journal::AskForSnapshots(const std::shared_ptr<Job>& job) {
  SnapshotLimits limits = options_.snapshots;
  limits.least = std::max(limits.least, options_.segment_bytes);
  std::string folder;
  {
    absl::MutexLock lock(&mutex_);
    if (!job->may_begin_anew || job->phase != Phase::kGoesOn) return;
    folder = FolderOfRun(*job);
  }
  for (uint32_t engine = 0; engine < job->engines; ++engine) {
    ShardLog& shard = job->shards[engine];
    const ShardLog::Due due = shard.WhatIsDue(limits);
    if (due == ShardLog::Due::kNothing) continue;
    const bool begins = due == ShardLog::Due::kSnapshot;
    if (begins) {
      const absl::Status begun = shard.BeginSnapshot(folder);
      if (!begun.ok()) return Fail(*job, begun);
    }
    absl::MutexLock lock(&mutex_);
    const auto current = jobs_.find(job->id);
    if (current == jobs_.end() || current->second != job) return;
    options_.on_snapshot(
        job->id, engine,
        begins ? ShardBackUp::Kind::kSnapshot : ShardBackUp::Kind::kNext);
  }
}

// ---- Starting over (BeginAnew) ----

absl::Status Journal::CheckRoom(const Job& job) const {
  const std::string folder =
      absl::StrCat(options_.directory, "/", FolderOf(job.head.job));
  SYNCLINE_RETURN_IF_ERROR(MakeFolder(folder));
  SYNCLINE_RETURN_IF_ERROR(TryFolder(folder));
  return HasRoom(folder, kRoomSegments * options_.segment_bytes);
}

void Journal::LookForRoom() {
  std::vector<std::shared_ptr<Job>> ended;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, job] : jobs_) {
      const bool may = job->may_begin_anew && job->is_allowed;
      if (job->phase == Phase::kEnded && may) ended.push_back(job);
    }
  }
  for (const auto& job : ended) {
    for (ShardLog& shard : job->shards) shard.GiveUp();
    uint32_t generation = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (clock_.Now() < job->retry_at) continue;
      generation = job->generation;
    }
    const absl::Status room = CheckRoom(*job);
    if (room.ok()) {
      for (ShardLog& shard : job->shards) shard.BeginAnew(generation);
    }
    absl::MutexLock lock(&mutex_);
    if (!room.ok()) {
      job->retry_at = clock_.Now() + job->retry;
      continue;
    }
    const auto current = jobs_.find(job->id);
    if (current == jobs_.end() || current->second != job) continue;
    job->phase = Phase::kBeginsAnew;
    job->has_all_parts = false;
    job->partial = job->silent;
    options_.log.Info("the journal starts over", {{"job", job->id}});
    options_.on_room(job->id);
  }
}

// Waits until all of the job can be played to a step that all shards have (ADR 33).
void Journal::FinishIfFarEnough(Job& job) {
  {
    absl::MutexLock lock(&mutex_);
    const bool waits = job.is_fenced && job.has_all_parts;
    if (!waits || job.phase != Phase::kBeginsAnew) return;
  }
  const auto is_there = [](const ShardLog& shard) { return shard.IsFarEnough(); };
  if (std::ranges::all_of(job.shards, is_there)) FinishBeginning(job);
}

void Journal::FinishBeginning(Job& job) {
  for (ShardLog& shard : job.shards) {
    if (const absl::Status whole = shard.Whole(); !whole.ok()) return Fail(job, whole);
  }
  for (ShardLog& shard : job.shards) shard.DeleteSuperseded();
  std::string folder;
  {
    absl::MutexLock lock(&mutex_);
    folder = FolderOfRun(job);
  }
  for (const ShardLog& shard : job.shards) {
    if (job.is_fenced) shard.DeleteEarlier(folder);
  }
  {
    absl::MutexLock lock(&mutex_);
    if (job.phase != Phase::kBeginsAnew) return;
    job.phase = Phase::kGoesOn;
    job.state.error.clear();
    job.retry = options_.retry;
  }
  SyncAll(job);
  uint32_t generation = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto current = jobs_.find(job.id);
    if (current == jobs_.end() || current->second.get() != &job) return;
    generation = job.generation;
    options_.log.Info("the journal goes on; the job is durable again",
                      {{"job", job.id}, {"version", job.state.durable}});
  }
  if (job.is_fenced) options_.on_whole(job.id, generation);
}

void Journal::Prune() {
  std::vector<std::pair<std::shared_ptr<Job>, std::set<uint64_t>>> jobs;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, job] : jobs_) {
      if (!job->saved.empty()) jobs.emplace_back(job, job->saved);
    }
  }
  for (const auto& [job, saved] : jobs) {
    for (auto step = saved.rbegin(); step != saved.rend(); ++step) {
      Enter(Stage::kTidies);
      if (!Covers(*job, *step)) continue;
      for (ShardLog& shard : job->shards) {
        if (const auto pruned = shard.Prune(*step); !pruned.ok()) {
          options_.log.Warning("a segment of the journal could not be deleted",
                               {{"job", job->id}, {"error", pruned.message()}});
        }
      }
      ShowSize(*job);
      absl::MutexLock lock(&mutex_);
      job->saved.erase(job->saved.begin(), job->saved.upper_bound(*step));
      break;
    }
  }
}

// Returns whether the checkpoint at that step covers the journal: its manifest and the
// heads of all its files can be read.
bool Journal::Covers(Job& job, uint64_t step) {
  const auto reader = CheckpointReader::Open(*options_.checkpoints, job.head.job,
                                             {job.head.checkpoint_run, step});
  if (reader.ok()) return true;
  if (absl::IsNotFound(reader.status())) return false;  // not complete yet
  options_.log.Warning(
      "the journal keeps its records, because the checkpoint that should cover them "
      "cannot be read",
      {{"job", job.id}, {"error", reader.status().message()}});
  absl::MutexLock lock(&mutex_);
  job.saved.erase(step);
  return false;
}

}  // namespace syncline
