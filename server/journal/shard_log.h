// Writes the segments of one shard. Knows which segment is open, which ones a checkpoint
// makes superfluous, and how far the shard's blocks are on the disk.
//
// A log that starts over (BeginAnew) counts as empty until the whole state of the shard
// was appended; its earlier segments stay until then. A log that goes on takes a snapshot
// of its shard every so often. The shard's blocks then come among its records
// (ShardBackUp::Kind::kSnapshot), and once they are on the disk the segments before them
// are deleted.
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
  uint32_t last_number = 0;  // number of the last segment
  struct Segment {
    std::string path = {};
    // The highest version of a block after its records.
    uint64_t version = 0;
    uint64_t bytes = 0;
  };
  std::vector<Segment> segments = {};
  std::vector<std::shared_ptr<const ShardRecord>> settings = {};
  std::map<uint32_t, uint64_t> versions = {};  // of trained blocks
  // The highest version among the block states that it begins with.
  uint64_t anew_version = 0;
  std::shared_ptr<UniqueFd> lock = {};
};
// Adds settings in place of those that hold from the same or a later step. The settings
// of a step are the last ones that hold there.
void AddSettings(const std::shared_ptr<const ShardRecord>& record,
                 std::vector<std::shared_ptr<const ShardRecord>>& settings);

// When a journal that goes on takes a snapshot of its shard.
struct SnapshotLimits {
  // A snapshot is due once the records since the last one have this many times the bytes
  // of the shard's state. 0: never.
  double factor = 0;
  uint64_t least = 0;  // the least bytes of records, for small shards
};

// Returns "shard-00003.lock", or "shard-00003-g17.lock". The process that writes these
// segments of the shard holds the lock.
std::string LockName(uint32_t shard, uint32_t generation = 0);

class ShardLog {
 public:
  // Continues where `tail` ends, in a new segment.
  ShardLog(SegmentHead head, const ShardTail& tail);
  // `trained`: the blocks that make steps. All of them are at `version` when the log
  // begins.
  ShardLog(SegmentHead head, const std::vector<uint32_t>& trained, uint64_t version);

  // Appends a record to a segment in `folder`, which must exist. Begins a new segment if
  // there is none, or if the last one has `segment_bytes`.
  absl::Status Append(const std::string& folder, uint64_t segment_bytes,
                      const std::shared_ptr<const ShardRecord>& record);
  // Does nothing if nothing was appended since the last one.
  absl::Status Sync();
  // Returns the highest version that every trained block has reached on the disk;
  // UINT64_MAX if no block is trained.
  uint64_t durable() const;
  // Returns how many records were appended here and are on the disk.
  uint64_t durable_records() const { return durable_records_; }
  // Returns the bytes that were written, including those of the tail.
  uint64_t bytes() const { return written_ + (open_ ? open_->bytes() : 0); }
  // Returns the bytes of its segments that are still on the disk.
  uint64_t disk_bytes() const;
  // Returns the highest version among the block states that it begins with. 0: it begins
  // with the first values, or continues a checkpoint.
  uint64_t anew_version() const { return anew_version_; }
  // Sets the expected size of the shard's state. The first snapshot replaces it.
  void ExpectStateBytes(uint64_t bytes) { state_bytes_ = bytes; }

  // Deletes closed segments whose records all lead to versions up to `version`. Deletes
  // nothing if the log is not whole, or begins with a block state of a later version.
  absl::Status Prune(uint64_t version);

  // ---- Snapshots of a journal that goes on ----

  enum class Due { kNothing, kSnapshot, kNextBlocks };
  // Returns what is due after what was appended. Within a snapshot, the next blocks are
  // due once as many bytes of records as of states were appended, so states take no more
  // of the disk than records do. Returns kNextBlocks once for each TookState.
  Due WhatIsDue(const SnapshotLimits& limits);
  // Begins a snapshot: the state of every block is appended from now on, among records.
  absl::Status BeginSnapshot(const std::string& folder);
  // Notes that the states of a block, or of all blocks that step together, were appended,
  // and more follow.
  void TookState();
  // Notes that the last states were appended.
  void TookAllStates();
  // Call it after Sync. Completes the snapshot once all of it is on the disk and no step
  // that all blocks of the job have in common is before it. Returns true then: the
  // snapshot counts, and what precedes it is no longer needed.
  absl::StatusOr<bool> FinishSnapshot();

  // ---- Starting over (BeginAnew) ----

  // Starts over: from now on the shard's state is appended, block by block, and its
  // records.
  void BeginAnew(uint32_t generation = 0);
  // Returns whether all of it has been appended and synced, and no block of the job can
  // be further behind.
  bool IsFarEnough() const;
  // Makes the new start count instead of what was there before. Call it when the whole
  // state was appended.
  absl::Status Whole();
  // Deletes what was there before the new start, or before the last snapshot. Call it
  // once all shards of the server are whole. Until then, the shards that are not may have
  // to be played from their old segments, to a step that all have.
  void DeleteSuperseded();
  // Deletes segments of earlier generations in `folder` that no process writes.
  void DeleteEarlier(const std::string& folder) const;
  // Gives up an unfinished new start: deletes its segments and goes back to those before.
  void GiveUp();

 private:
  struct Closed {
    std::string path = {};
    // The highest version of a block after its records.
    uint64_t version = 0;
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
  std::string path_;  // of the open segment
  uint32_t number_ = 0;
  // The highest version of a block after the open segment's records.
  uint64_t version_ = 0;
  std::deque<Closed> closed_;
  bool is_begun_ = false;      // it starts over and is not whole
  uint64_t anew_version_ = 0;  // the highest of the states that it begins with
  // Number of the first segment of the last snapshot.
  uint32_t snapshot_number_ = 0;
  struct Before {
    std::deque<Closed> closed = {};
    uint64_t written = 0;
    uint64_t anew_version = 0;
  };
  Before before_;  // what the new start supersedes
  struct Snapshot {
    uint32_t number = 0;   // of its first segment
    uint64_t version = 0;  // the highest of its blocks
    uint64_t states = 0;   // bytes of states
    uint64_t records = 0;  // bytes of other records since it began
    bool has_all = false;
  };
  std::optional<Snapshot> snapshot_;  // under way
  // Whether the shard was asked for a state that has not come.
  bool is_asked_ = false;
  uint64_t since_ = 0;        // bytes of records since the last snapshot began
  uint64_t state_bytes_ = 0;  // of the shard, as far as known
  uint64_t written_ = 0;      // to closed segments
  // Settings that hold or will hold. Each segment begins with them, since earlier ones
  // may be deleted.
  std::vector<std::shared_ptr<const ShardRecord>> settings_;
  std::map<uint32_t, uint64_t> versions_;  // of blocks, appended
  std::map<uint64_t, size_t> blocks_at_;   // number of blocks in versions_, by version
  uint64_t durable_ = 0;
  uint64_t records_ = 0;  // appended
  uint64_t durable_records_ = 0;
  bool is_dirty_ = false;
};

}  // namespace syncline
