// A segment: a file of a journal, to which records are only ever added.
//
//   DIR/JOB/9f03c1d2a4b5e677/shard-00003-000001.journal
//
// A shard's journal that begins anew (journal.h) does so in a segment whose name says it:
//
//   shard-00003-000007-begun.journal    not all of the shard is there yet
//   shard-00003-000007-anew.journal     with those after it, all of it
//
// In jobs with backups, too, a journal that begins anew, or on another server, is another
// generation (ADR 38): the highest that is whole counts.
//
//   shard-00003-g17-000001-anew.journal
//
// A snapshot of a journal that goes on begins in a segment like any other, which gets the
// name `-anew` once all of the snapshot is on the disk. Its records go on from those before
// it; those of a block that precede its state are passed over by whoever begins there.
//
//   "SYNCJRNL" | format u32 | bytes u32 | CRC-32C u32 | about: bytes    (SegmentHead)
//   "SREC" u32 | bytes u32 | sequence u64 | group u64 | CRC-32C u32 | record: bytes
//   ...
//
// Sequence numbers of a shard go on from segment to segment. `group` is the sequence of the
// first record of the same group: a group is begun when all before it is on the disk. So
// what is damaged can be told from what a power cut tore off: a bad record that lies before
// a later group was on the disk once, and is an error; anything else that is bad is the
// tail of the last group, of which nobody was told, and is cut off.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/base/unique_fd.h"
#include "server/checkpoint/manifest.h"
#include "server/shard/record.h"

namespace syncline {

// Bytes are the same in both formats. 1: in mode asp the weight of age scaled the learning
// rate of all optimizers; 2: the gradient, of those that remember gradients (CheckRule).
inline constexpr uint32_t kJournalFormat = 2;

// Whose records they are, and all that replaying needs besides them and a checkpoint.
struct SegmentHead {
  std::string job = {};
  std::string specification = {};  // of the job, as servers got it
  int64_t created_unix_ms = 0;
  uint32_t shard = 0;
  std::vector<uint32_t> blocks = {};  // of the shard
  uint64_t first_sequence = 1;        // of its first record
  // Of the job's checkpoints; 0: it has none.
  uint32_t checkpoint_run = 0;
  std::optional<CheckpointName> began_from = std::nullopt;
  uint32_t format = kJournalFormat;  // as it was read

  bool operator==(const SegmentHead&) const = default;
};

enum class SegmentKind {
  kGoesOn,  // where the one before it ended; the first one of all, too
  kBegun,   // of a beginning that counts for nothing yet, nor do those after it
  kAnew,    // those before it are no longer needed
};
// "shard-00003-000001.journal"; with a generation other than 0 "shard-00003-g17-000001.journal"
std::string SegmentName(uint32_t shard, uint32_t number,
                        SegmentKind kind = SegmentKind::kGoesOn, uint32_t generation = 0);
struct SegmentPlace {
  uint32_t shard = 0;
  uint32_t generation = 0;
  uint32_t number = 0;
  SegmentKind kind = SegmentKind::kGoesOn;
};
std::optional<SegmentPlace> ParseSegmentName(const std::string& name);
// Whether the segment of that path is the first of a beginning: nothing before it is needed.
bool BeginsAnew(const std::string& path);

// Errors name the file, and how many bytes were to be written where.
class SegmentWriter {
 public:
  // AlreadyExists when there is one: a journal is never written over.
  static absl::StatusOr<std::unique_ptr<SegmentWriter>> Create(const std::string& path,
                                                               const SegmentHead& head);

  // Begins with a new group after each Sync.
  absl::Status Append(const ShardRecord& record);
  // All that was appended is on the disk. DataLoss where the system has not been able to
  // write it: it may have dropped it, and later syncs of the file would not say so. What
  // was not synced is cut off then, so that nobody reads it from memory as if it were there.
  absl::Status Sync();

  uint64_t bytes() const { return bytes_; }
  uint64_t next_sequence() const { return next_; }

 private:
  SegmentWriter(std::string path, UniqueFd fd)
      : path_(std::move(path)), fd_(std::move(fd)) {}
  absl::Status Write(ByteView bytes);

  const std::string path_;
  UniqueFd fd_;
  uint64_t bytes_ = 0;
  uint64_t synced_bytes_ = 0;
  uint64_t next_ = 0;
  uint64_t group_ = 0;
};

class SegmentReader {
 public:
  // What ends a segment: it may be torn where no other follows it.
  enum class Place { kLast, kFollowed };

  // NotFound, DataLoss with file and offset, FailedPrecondition for a newer format. A last
  // segment whose head is torn has none: it ends where it begins.
  static absl::StatusOr<std::unique_ptr<SegmentReader>> Open(const std::string& path,
                                                             Place place);

  // Null: torn before the head was written.
  const std::optional<SegmentHead>& head() const { return head_; }
  // Nothing at the end. DataLoss with file and offset where something is damaged.
  absl::StatusOr<std::optional<ShardRecord>> Next();
  uint64_t next_sequence() const { return next_; }
  // Of the file, up to here: the head, and what Next has given out.
  uint64_t offset() const { return offset_; }
  // Bytes at the end that were no whole record, once Next has come to it.
  uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  struct Frame {
    uint64_t sequence = 0;
    uint64_t group = 0;
    ByteView record = {};
    size_t bytes = 0;  // of all of it
  };

  SegmentReader(std::string path, Place place, std::vector<std::byte> bytes)
      : path_(std::move(path)), place_(place), bytes_(std::move(bytes)) {}
  absl::Status ReadHead();
  std::optional<Frame> FrameAt(size_t offset) const;
  bool LaterGroupFollows(size_t offset) const;
  absl::Status Damaged(size_t offset, const std::string& why) const;

  const std::string path_;
  const Place place_;
  const std::vector<std::byte> bytes_;
  std::optional<SegmentHead> head_;
  size_t offset_ = 0;
  uint64_t next_ = 0;
  uint64_t torn_bytes_ = 0;
};

}  // namespace syncline
