// A segment is a file of a journal. Records are only ever appended to it.
//
//   DIR/JOB/9f03c1d2a4b5e677/shard-00003-000001.journal
//
// A shard's journal that starts over (journal.h) does so in a segment with a name of its
// own:
//
//   shard-00003-000007-begun.journal    not all of the shard's state is there yet
//   shard-00003-000007-anew.journal     all of it is in this segment and those after it
//
// In jobs that also have backups, a journal that starts over, or on another server, is a
// new generation (ADR 38). The highest generation that is whole counts.
//
//   shard-00003-g17-000001-anew.journal
//
// A snapshot of a journal that goes on begins in an ordinary segment, which is renamed to
// `-anew` once the whole snapshot is on the disk. Its records continue those before it. A
// reader that begins there skips the records of a block that precede its state.
//
//   "SYNCJRNL" | format u32 | bytes u32 | CRC-32C u32 | about: bytes    (SegmentHead)
//   "SREC" u32 | bytes u32 | sequence u64 | group u64 | CRC-32C u32 | record: bytes
//   ...
//
// Sequence numbers of a shard continue from segment to segment. `group` is the sequence
// number of the first record of the same group. A group is begun only when everything
// before it is on the disk. This tells damage from a tail that a power cut tore off. A
// bad record before a later group was on the disk once, and is an error. Any other bad
// record belongs to the last group, which was not reported as durable yet, and is cut
// off.
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

// Version of the format. The layout is the same in both. 1: in mode asp the weight by age
// scaled the learning rate of all optimizers. 2: it scales the gradient of optimizers
// that remember gradients (Player::CheckRule in replay.cc).
inline constexpr uint32_t kJournalFormat = 2;

// Says whose records follow, and all that a replay needs besides them and a checkpoint.
struct SegmentHead {
  std::string job = {};
  std::string specification = {};  // of the job, as servers received it
  int64_t created_unix_ms = 0;
  uint32_t shard = 0;
  std::vector<uint32_t> blocks = {};  // of the shard
  uint64_t first_sequence = 1;        // of the segment's first record
  // The run number of the job's checkpoints; 0: it has none.
  uint32_t checkpoint_run = 0;
  std::optional<CheckpointName> began_from = std::nullopt;
  uint32_t format = kJournalFormat;  // as it was read

  bool operator==(const SegmentHead&) const = default;
};

enum class SegmentKind {
  // It continues the one before it, or is the first of all.
  kGoesOn,
  // It starts over but is not whole: it does not count yet, nor do segments after it.
  kBegun,
  // It holds the states of all blocks: segments before it are no longer needed.
  kAnew,
};
// Returns "shard-00003-000001.journal", or with a generation other than 0
// "shard-00003-g17-000001.journal". The kind may add a suffix.
std::string SegmentName(uint32_t shard, uint32_t number,
                        SegmentKind kind = SegmentKind::kGoesOn, uint32_t generation = 0);
struct SegmentPlace {
  uint32_t shard = 0;
  uint32_t generation = 0;
  uint32_t number = 0;
  SegmentKind kind = SegmentKind::kGoesOn;
};
std::optional<SegmentPlace> ParseSegmentName(const std::string& name);
// Returns whether the segment at that path begins a whole journal: nothing before it is
// needed.
bool BeginsAnew(const std::string& path);

// Writes a segment. Errors name the file, the number of bytes and their offset.
class SegmentWriter {
 public:
  // Creates the file. Fails with AlreadyExists if it exists: a journal is never
  // overwritten.
  static absl::StatusOr<std::unique_ptr<SegmentWriter>> Create(const std::string& path,
                                                               const SegmentHead& head);

  // Appends a record. The first one after a Sync begins a new group.
  absl::Status Append(const ShardRecord& record);
  // Makes everything that was appended durable. Fails with DataLoss if the system could
  // not write it: it may have dropped the data, and later syncs would not report that.
  // What was not synced is then cut off, so that nobody reads it from the cache as if it
  // were on the disk.
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
  // Whether another segment follows. Only the last segment may have a torn end.
  enum class Place { kLast, kFollowed };

  // Fails with NotFound, with DataLoss (file and offset), or with FailedPrecondition for
  // a newer format. A last segment with a torn head opens without a head, and has no
  // records.
  static absl::StatusOr<std::unique_ptr<SegmentReader>> Open(const std::string& path,
                                                             Place place);

  // Empty: the segment was torn before its head was written.
  const std::optional<SegmentHead>& head() const { return head_; }
  // Returns the next record; nothing at the end. Fails with DataLoss (file and offset) if
  // something is damaged.
  absl::StatusOr<std::optional<ShardRecord>> Next();
  uint64_t next_sequence() const { return next_; }
  // Bytes of the file up to here: the head and the records that Next has returned.
  uint64_t offset() const { return offset_; }
  // Bytes at the end that are no whole record. Known once Next has reached the end.
  uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  struct Frame {
    uint64_t sequence = 0;
    uint64_t group = 0;
    ByteView record = {};
    size_t bytes = 0;  // of the whole frame
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
