// A server's journal, as Journal has it: it takes snapshots and deletes what is before them,
// and when its disk has failed it begins anew.
#include <algorithm>
#include <utility>
#include <variant>

#include "tests/sim/server_engine.h"

namespace syncline::sim {
namespace {

// As ShardLog has it.
constexpr uint64_t kFurthestBehind = 2;

}  // namespace

void ServerEngine::EndJournal() {
  sync_fails_ = false;
  if (shard_ == nullptr || has_ended_) return;
  has_ended_ = true;
  snapshot_.reset();
  Run(ShardDurable{~uint64_t{0}});
}

// As a segment does, it cuts off what may not be on the disk.
void ServerEngine::LoseSync() {
  ShardDisk& disk = parts_.disk;
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

void ServerEngine::BeginJournalAnew() {
  if (shard_ == nullptr || !has_ended_) return;
  parts_.disk = {.begins_anew = true};
  begun_at_ = 0;
  ++journal_;
  has_ended_ = false;
  begins_anew_ = true;
  Run(ShardBackUp{});
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

// The order takes a moment, in which records come.
void ServerEngine::SnapshotIfDue() {
  if (shard_ == nullptr || has_ended_ || begins_anew_ || snapshot_) return;
  if (since_snapshot_ < snapshot_every_) return;
  since_snapshot_ = 0;
  snapshot_ = Snapshot{.from = parts_.disk.records.size()};
  parts_.on_snapshot();
  TakeSnapshot(ShardBackUp::Kind::kSnapshot);
}

void ServerEngine::TakeSnapshot(ShardBackUp::Kind order) {
  const int micros = std::uniform_int_distribution<int>(0, 10000)(snapshots_random_);
  After(absl::Microseconds(micros), [this, order] {
    if (shard_ != nullptr && snapshot_) Run(ShardBackUp{order});
  });
}

void ServerEngine::OnRecordedState(const ShardBackedUp& backed_up) {
  if (begins_anew_) {
    if (backed_up.more) {
      return After(absl::ZeroDuration(), [this] {
        if (shard_ != nullptr && begins_anew_) {
          Run(ShardBackUp{ShardBackUp::Kind::kNext});
        }
      });
    }
    begins_anew_ = false;
    return parts_.on_whole();
  }
  if (!snapshot_) return;
  if (backed_up.more) return TakeSnapshot(ShardBackUp::Kind::kNext);
  snapshot_->has_all = true;
}

void ServerEngine::PruneIfSafe() {
  if (!snapshot_ || !snapshot_->has_all) return;
  const std::map<uint32_t, uint64_t> versions = parts_.disk.Versions();
  for (const ShardBlock& block : blocks_) {
    if (options_.tensors[block.range.tensor].group.frozen) continue;
    const auto version = versions.find(block.block);
    if (version == versions.end()) return;
    if (version->second < snapshot_->version + kFurthestBehind) return;
  }
  Prune();
}

// Settings are at the front of every segment.
void ServerEngine::Prune() {
  ShardDisk& disk = parts_.disk;
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
