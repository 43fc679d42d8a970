// What there is of a job's journal, in the directories of any number of servers: one run,
// its shards, and the records of each in order.
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
  // Paths of segments, in order: from where the shard's journal began last.
  std::map<uint32_t, std::vector<std::string>> shards = {};
  // Of those before, and of a beginning that did not become whole: of no use any more.
  std::map<uint32_t, std::vector<std::string>> superseded = {};
  std::map<uint32_t, uint32_t> generations = {};  // of what counts, by shard
  std::vector<std::string> others = {};           // runs that are there, too, for people

  // "9f03c1d2a4b5e677, begun 2026-03-01T12:00:00+00:00".
  std::string Describe() const;
};

// The run of that name; empty: the one that began last, of those whose heads can be read.
// NotFound says where there is none, and which there are; other errors name the file.
absl::StatusOr<JournalRun> FindRun(const std::vector<std::string>& directories,
                                   const std::string& job, const std::string& name = "");

// Whether it has a record of anything: a run that has none would not be missed.
absl::StatusOr<bool> HasRecords(const JournalRun& run);
// Keeps servers from writing it for as long as these are open. Unavailable while one does.
absl::StatusOr<std::vector<UniqueFd>> LockRun(const JournalRun& run);
// Notes that nothing of it would be missed any more: its job came to its end, or a
// checkpoint has its last step. `why` is for people, who find it in the file `settled`.
absl::Status Settle(const JournalRun& run, const std::string& why);
bool IsSettled(const JournalRun& run);

// What a directory has, by the names of its files only: nothing is read.
struct RunOnDisk {
  std::string job = {};  // the folder of its name (server/checkpoint/manifest.h)
  std::string run = {};
  std::vector<uint32_t> shards = {};
  std::vector<uint32_t> generations = {};  // of each: the highest that is whole
};
std::vector<RunOnDisk> ListRuns(const std::string& directory);

class ShardRecords {
 public:
  // `segments`: all of a shard, in order.
  static absl::StatusOr<std::unique_ptr<ShardRecords>> Open(
      std::vector<std::string> segments);

  // Of the first segment.
  const SegmentHead& head() const { return head_; }
  // With the states of its blocks, among its records: nothing before them is needed.
  bool begins_anew() const { return BeginsAnew(segments_.front()); }
  // Nothing at the end. DataLoss where something is damaged, or a segment is missing.
  absl::StatusOr<std::optional<ShardRecord>> Next();
  // Between two records: how many segments were begun, and the bytes of the last of them.
  struct Place {
    size_t segments = 0;
    uint64_t bytes = 0;
    uint64_t next_sequence = 0;
  };
  Place place() const { return {opened_, reader_->offset(), next_}; }
  // What was cut off at the end, for people; empty: nothing.
  const std::string& torn() const { return torn_; }

 private:
  explicit ShardRecords(std::vector<std::string> segments)
      : segments_(std::move(segments)) {}
  absl::Status OpenNext();

  const std::vector<std::string> segments_;
  size_t opened_ = 0;
  SegmentHead head_;
  std::unique_ptr<SegmentReader> reader_;
  uint64_t next_ = 0;  // sequence
  std::string torn_;
};

}  // namespace syncline
