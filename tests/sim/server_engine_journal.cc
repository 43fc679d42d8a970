// The journal of a simulated server, which does what Journal does. It takes snapshots and
// deletes the records before them. After its disk has failed, it starts again.
#include <algorithm>
#include <utility>
#include <variant>

#include "tests/sim/server_engine.h"

namespace syncline::sim {
namespace {

// The same as in ShardLog.
constexpr uint64_t kFurthestBehind = 2;

}  // namespace

void ServerEngine::EndJournal() {
  sync_fails_ = false;
  if (shard_ == nullptr || has_ended_) return;
  has_ended_ = true;
  begins_anew_ = has_states_ = false;
  snapshot_.reset();
  if (is_fenced_ && parts_.fault == Fault::kGoesOnAlone) LoseJournal();
  if (is_fenced_) return parts_.on_journal_ended();
  LoseJournal();
}

void ServerEngine::LoseJournal() {
  if (shard_ == nullptr) return;
  sinks_.Lose(RecordSinks::Sink::kJournal);
  Tell();
  BeginPass();
}

// Drops the records that may not be on the disk, as a segment does.
void ServerEngine::LoseSync() {
  ShardDisk& disk = *disk_;
  if (parts_.fault == Fault::kGoesOnUnsynced) {
    std::fill(disk.records.begin() + static_cast<std::ptrdiff_t>(disk.synced),
              disk.records.end(), nullptr);
    return;  // the next sync succeeds
  }
  disk.records.resize(disk.synced);
  has_ended_ = true;
  snapshot_.reset();
  parts_.on_lost_sync();
}

void ServerEngine::BeginJournalAnew() { BeginJournalAnew(*disk_); }

void ServerEngine::BeginJournalAnew(ShardDisk& disk) {
  if (shard_ == nullptr || !has_ended_) return;
  next_disk_ = &disk;
  sinks_.Want(RecordSinks::Pass::kJournal);
  BeginPass();
}

void ServerEngine::NoteRecord(std::shared_ptr<const ShardRecord>& kept) {
  ++since_snapshot_;
  if (!snapshot_) return;
  if (const auto* state = std::get_if<BlockStateRecord>(&kept->what)) {
    snapshot_->version = std::max(snapshot_->version, state->saved->version);
    snapshot_->blocks.insert(state->block);
    const bool is_last = snapshot_->blocks.size() == owned_.size();
    if (is_last && parts_.fault == Fault::kPrunesEarly) Prune();
    return;
  }
  const auto* step = std::get_if<StepRecord>(&kept->what);
  const bool is_before = step != nullptr && !snapshot_->blocks.contains(step->block);
  if (is_before && parts_.fault == Fault::kPassesOver) kept = nullptr;
}

// The order takes some time, during which records arrive.
void ServerEngine::SnapshotIfDue() {
  if (shard_ == nullptr || has_ended_ || begins_anew_ || snapshot_) return;
  if (since_snapshot_ < snapshot_every_) return;
  since_snapshot_ = 0;
  snapshot_ = Snapshot{.from = disk_->records.size()};
  parts_.on_snapshot();
  TakeSnapshot(ShardBackUp::Kind::kSnapshot);
}

void ServerEngine::TakeSnapshot(ShardBackUp::Kind order) {
  const absl::Duration delay =
      absl::Microseconds(std::uniform_int_distribution<int>(0, 10000)(snapshots_random_));
  if (order == ShardBackUp::Kind::kNext) {
    return GoOnWith(RecordSinks::Pass::kSnapshot, delay);
  }
  After(delay, [this] {
    if (!snapshot_) return;
    sinks_.Want(RecordSinks::Pass::kSnapshot);
    BeginPass();
  });
}

// Whether all trained blocks have come so far on the disk that no block of the job is
// before `version`.
bool ServerEngine::ReachesFar(uint64_t version) const {
  const std::map<uint32_t, uint64_t> versions = disk_->Versions();
  return std::ranges::all_of(blocks_, [&](const ShardBlock& block) {
    if (options_.tensors[block.range.tensor].group.frozen) return true;
    const auto durable = versions.find(block.block);
    return durable != versions.end() && durable->second >= version + kFurthestBehind;
  });
}

void ServerEngine::PruneIfSafe() {
  if (!snapshot_ || !snapshot_->has_all) return;
  if (ReachesFar(snapshot_->version)) Prune();
}

// Reports that a restarted journal is complete, if that is safe. Without a backup it is
// complete once it has all states, which are synced when they are answered.
void ServerEngine::WholeIfSafe() {
  const bool is_early = parts_.fault == Fault::kWholeEarly && is_fenced_;
  if (!begins_anew_ || !(has_states_ || is_early)) return;
  uint64_t version = 0;
  for (const auto& record : disk_->records) {
    const auto* state = std::get_if<BlockStateRecord>(&record->what);
    if (state != nullptr) version = std::max(version, state->saved->version);
  }
  if (is_fenced_ && !is_early && !ReachesFar(version)) return;
  begins_anew_ = has_states_ = false;
  has_all_records_ = true;
  parts_.on_whole();
}

// Settings are at the front of every segment.
void ServerEngine::Prune() {
  ShardDisk& disk = *disk_;
  const auto from = disk.records.begin() + static_cast<std::ptrdiff_t>(snapshot_->from);
  const auto is_needed = [](const std::shared_ptr<const ShardRecord>& record) {
    return record != nullptr && std::holds_alternative<SettingsRecord>(record->what);
  };
  const auto deleted = std::stable_partition(disk.records.begin(), from, is_needed);
  const auto count = static_cast<size_t>(from - deleted);
  disk.records.erase(deleted, from);
  disk.synced -= std::min(disk.synced, count);
  disk.begins_anew = true;
  begun_at_ -= static_cast<int64_t>(count);
  const uint64_t version = std::exchange(snapshot_, std::nullopt)->version;
  parts_.on_pruned(version);
}

}  // namespace syncline::sim
