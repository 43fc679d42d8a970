// The segments of one shard, as they are written: which one is open, which ones a
// checkpoint makes superfluous, and how far the shard's blocks are on the disk.
//
// One that begins anew has nothing until all that the shard is was appended; what there
// was before stays until then. One that goes on takes a snapshot of its shard every so
// often: the shard's blocks come among its records (ShardBackUp::Kind::kSnapshot), and once
// they are on the disk what is before them goes.
//
// Thread safety: none; the journal's thread owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/journal/segment.h"

namespace syncline {

// The segments of a shard that another process wrote, and how far they go.
struct ShardTail {
  uint64_t next_sequence = 1;
  uint32_t generation = 0;
  uint32_t last_number = 0;  // of a segment
  struct Segment {
    std::string path = {};
    uint64_t version = 0;  // the highest that its records lead to
    uint64_t bytes = 0;
  };
  std::vector<Segment> segments = {};
  std::vector<std::shared_ptr<const ShardRecord>> settings = {};
  std::map<uint32_t, uint64_t> versions = {};  // of blocks that are trained
  uint64_t anew_version = 0;                   // the highest that it began anew with
  std::shared_ptr<UniqueFd> lock = {};
};
// Takes the place of those that it makes superfluous: whoever looks for a step's settings
// takes the last ones that hold there.
void AddSettings(const std::shared_ptr<const ShardRecord>& record,
                 std::vector<std::shared_ptr<const ShardRecord>>& settings);

// When a journal that goes on takes a snapshot of its shard.
struct SnapshotLimits {
  // Once the records since the last one have so many times the bytes of the shard's state.
  // 0: never.
  double factor = 0;
  uint64_t least = 0;  // bytes of records, for small shards
};

// "shard-00003.lock", "shard-00003-g17.lock": whoever writes these segments of the shard
// holds it.
std::string LockName(uint32_t shard, uint32_t generation = 0);

class ShardLog {
 public:
  // Goes on where that one ends, in a segment of its own.
  ShardLog(SegmentHead head, const ShardTail& tail);
  // `trained`: its blocks that make steps; all of them are at `version` when it begins.
  ShardLog(SegmentHead head, const std::vector<uint32_t>& trained, uint64_t version);

  // In `folder`, which must exist. Begins a segment when there is none, or the last one
  // has `segment_bytes`.
  absl::Status Append(const std::string& folder, uint64_t segment_bytes,
                      const std::shared_ptr<const ShardRecord>& record);
  // Nothing when nothing was appended.
  absl::Status Sync();
  // The highest version that every trained block has reached on the disk; the largest
  // number when there is none.
  uint64_t durable() const;
  // That were appended here, and are on the disk.
  uint64_t durable_records() const { return durable_records_; }
  // Written.
  uint64_t bytes() const { return written_ + (open_ ? open_->bytes() : 0); }
  // That the disk holds of it.
  uint64_t disk_bytes() const;
  // The highest version of those that it begins with; 0: it has the first values, or what
  // follows a checkpoint.
  uint64_t anew_version() const { return anew_version_; }
  // Until a snapshot has said how many it really are.
  void ExpectStateBytes(uint64_t bytes) { state_bytes_ = bytes; }

  // Deletes the segments before the open one whose records all lead to versions up to
  // `version`; none before all blocks are recorded from there on.
  absl::Status Prune(uint64_t version);

  // ---- Snapshots of a journal that goes on ----

  enum class Due { kNothing, kSnapshot, kNextBlocks };
  // By what was appended: a state for as many bytes of records, so that it costs the disk no
  // more than that. Says kNextBlocks once for each time that TookState was said.
  Due WhatIsDue(const SnapshotLimits& limits);
  // What is appended from now on has the state of every block.
  absl::Status BeginSnapshot(const std::string& folder);
  // A block's state was appended, or those of all that step together; more follow.
  void TookState();
  // They were the last.
  void TookAllStates();
  // Once all of it is on the disk, and no step that all blocks of the job have in common is
  // before it, it counts, and what precedes it does not: true. After Sync.
  absl::StatusOr<bool> FinishSnapshot();

  // ---- Beginning anew ----

  // What is appended from now on is all that the shard is, block by block, and its records.
  void BeginAnew(uint32_t generation = 0);
  // All of it has been appended and synced, and no block of the job can be further behind.
  bool IsFarEnough() const;
  // All of it is on the disk: it counts, and what was there before does not.
  absl::Status Whole();
  // What was there before it, or before the last snapshot, goes. Once all shards of the
  // server are whole, so that those that are not could still be played to a step that all
  // have.
  void DeleteSuperseded();
  // Of earlier generations in that folder, which nobody writes.
  void DeleteEarlier(const std::string& folder) const;
  // It will not be whole: its segments go, and the space they take.
  void GiveUp();

 private:
  struct Closed {
    std::string path = {};
    uint64_t version = 0;  // the highest that its records lead to
    uint64_t bytes = 0;
  };
  absl::Status Begin(const std::string& folder);
  absl::Status BeAnew(std::string& path);
  void Note(const BlockStateRecord& state);
  SegmentKind NextKind() const;
  void CountBlocks();
  void Count(uint32_t block, uint64_t version);

  SegmentHead head_;
  std::shared_ptr<UniqueFd> lock_;  // once it has begun
  uint32_t generation_ = 0;
  std::unique_ptr<SegmentWriter> open_;
  std::string path_;  // of the open one
  uint32_t number_ = 0;
  uint64_t version_ = 0;  // the highest that the open one's records lead to
  std::deque<Closed> closed_;
  bool is_begun_ = false;         // anew, and not whole
  uint64_t anew_version_ = 0;     // the highest that it begins with
  uint32_t snapshot_number_ = 0;  // of the first segment of the last snapshot
  struct Before {
    std::deque<Closed> closed = {};
    uint64_t written = 0;
    uint64_t anew_version = 0;
  };
  Before before_;  // what is begun supersedes
  struct Snapshot {
    uint32_t number = 0;   // of its first segment
    uint64_t version = 0;  // the highest of its blocks
    uint64_t states = 0;   // bytes of them
    uint64_t records = 0;  // bytes of all others since it began
    bool has_all = false;
  };
  std::optional<Snapshot> snapshot_;  // that is under way
  bool is_asked_ = false;             // the shard, for a state that is not there
  uint64_t since_ = 0;                // bytes of records since the last one began
  uint64_t state_bytes_ = 0;          // of the shard, as far as is known
  uint64_t written_ = 0;              // to segments that are closed
  // In force, or to be: at the front of every segment, since those before may be gone.
  std::vector<std::shared_ptr<const ShardRecord>> settings_;
  std::map<uint32_t, uint64_t> versions_;  // of blocks, appended
  std::map<uint64_t, size_t> blocks_at_;   // versions_, counted
  uint64_t durable_ = 0;
  uint64_t records_ = 0;  // appended
  uint64_t durable_records_ = 0;
  bool is_dirty_ = false;
};

}  // namespace syncline
