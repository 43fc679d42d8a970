// Finds a job's journal in the directories of any number of servers: one run, its shards,
// and the records of each shard in order.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const JournalRun run, FindRun({"/data/journal"}, "night"));
//   for (const auto& [shard, segments] : run.shards) {
//     SYNCLINE_ASSIGN_OR_RETURN(auto records, ShardRecords::Open(segments));
//     for (;;) { SYNCLINE_ASSIGN_OR_RETURN(auto record, records->Next()); ... }
//   }
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/unique_fd.h"
#include "server/journal/segment.h"

namespace syncline {

struct JournalRun {
  std::string name = {};
  SegmentHead head = {};  // of one of its shards
  // By shard: the paths of the segments that count, in order. The first one is where the
  // shard's journal started last.
  std::map<uint32_t, std::vector<std::string>> shards = {};
  // By shard: segments before those, and segments of a new start that never became whole.
  // They are no longer needed.
  std::map<uint32_t, std::vector<std::string>> superseded = {};
  // By shard: the generation that counts.
  std::map<uint32_t, uint32_t> generations = {};
  std::vector<std::string> others = {};  // descriptions of other runs, for users

  // Returns a description such as "9f03c1d2a4b5e677, begun 2026-03-01T12:00:00+00:00".
  std::string Describe() const;
};

// Returns the run of that name. Empty name: the run that began last, of those with
// readable heads. NotFound says where no run is and which runs there are; other errors
// name the file.
absl::StatusOr<JournalRun> FindRun(const std::vector<std::string>& directories,
                                   const std::string& job, const std::string& name = "");

// Returns whether the run has any record. A run without records may be discarded.
absl::StatusOr<bool> HasRecords(const JournalRun& run);
// Keeps servers from writing the run while the returned files are open. Fails with
// Unavailable while a server writes it.
absl::StatusOr<std::vector<UniqueFd>> LockRun(const JournalRun& run);
// Marks the run as no longer needed: its job came to its end, or a checkpoint has its
// last step. `why` is for users, who find it in the file `settled`.
absl::Status Settle(const JournalRun& run, const std::string& why);
bool IsSettled(const JournalRun& run);

// A run in a directory, known by the names of its files only; no file is read.
struct RunOnDisk {
  std::string job = {};  // folder of the job (server/checkpoint/manifest.h)
  std::string run = {};
  std::vector<uint32_t> shards = {};
  std::vector<uint32_t> generations = {};  // by shard: the highest that is whole
};
std::vector<RunOnDisk> ListRuns(const std::string& directory);

class ShardRecords {
 public:
  // Opens `segments`, which are all segments of a shard in order.
  static absl::StatusOr<std::unique_ptr<ShardRecords>> Open(
      std::vector<std::string> segments);

  // The head of the first segment.
  const SegmentHead& head() const { return head_; }
  // Returns whether the records include the states of all blocks, so that nothing before
  // them is needed.
  bool begins_anew() const { return BeginsAnew(segments_.front()); }
  // Returns the next record; nothing at the end. Fails with DataLoss if something is
  // damaged, or a segment is missing.
  absl::StatusOr<std::optional<ShardRecord>> Next();
  // A place between two records: the number of segments opened, and the bytes read of the
  // last one.
  struct Place {
    size_t segments = 0;
    uint64_t bytes = 0;
    uint64_t next_sequence = 0;
  };
  Place place() const { return {opened_, reader_->offset(), next_}; }
  // What was torn off at the end, for users; empty: nothing.
  const std::string& torn() const { return torn_; }

 private:
  explicit ShardRecords(std::vector<std::string> segments)
      : segments_(std::move(segments)) {}
  absl::Status OpenNext();

  const std::vector<std::string> segments_;
  size_t opened_ = 0;
  SegmentHead head_;
  std::unique_ptr<SegmentReader> reader_;
  uint64_t next_ = 0;  // sequence number of the next record
  std::string torn_;
};

}  // namespace syncline
