// A server that was started again takes up what the one before it wrote: its shards are
// made again from their records, what is torn off the end is cut, and the run goes on in
// further segments.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto run, RunRestore::Open({.directory = "/data/journal",
//                                                         .job = "night",
//                                                         .run = "9f03c1d2a4b5e677",
//                                                         .shards = {3, 4}}));
//   SYNCLINE_ASSIGN_OR_RETURN(ShardTail tail, run->Play(3, blocks, *shard));
//   journal.Begin({.run = ..., .tails = {tail, ...}});
//
// While it is open, and the journal that goes on with it, nobody else writes these shards.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/part.h"
#include "server/journal/run.h"
#include "server/journal/shard_log.h"
#include "server/shard/shard.h"

namespace syncline {

struct RunRestoreOptions {
  std::string directory = {};
  std::string job = {};
  std::string run = {};
  std::vector<uint32_t> shards = {};  // that have blocks
  uint32_t generation = 0;            // no other one is taken
  // For runs that began with a checkpoint, or whose first segments were deleted for one.
  BlobStore* checkpoints = nullptr;
  std::shared_ptr<const CheckpointLayout> layout = {};
};

class RunRestore {
 public:
  // Unavailable while another process still writes one of them, NotFound where a shard or
  // the run is missing; other errors name the file.
  static absl::StatusOr<std::unique_ptr<RunRestore>> Open(RunRestoreOptions options);

  // As the segments have it, for what follows.
  const SegmentHead& head() const { return run_.head; }

  // REQUIRES: the shard was made for these blocks, and has done nothing. DataLoss where the
  // records are damaged, or lead elsewhere than they say.
  absl::StatusOr<ShardTail> Play(uint32_t number, const std::vector<ShardBlock>& blocks,
                                 Shard& shard);

 private:
  RunRestore(RunRestoreOptions options, JournalRun run)
      : options_(std::move(options)), run_(std::move(run)) {}
  absl::Status Begin(const ShardRecords& records, const std::vector<ShardBlock>& blocks,
                     uint64_t reached, Shard& shard);
  absl::StatusOr<uint64_t> ReachedBy(const std::vector<std::string>& segments) const;

  const RunRestoreOptions options_;
  const JournalRun run_;
  std::map<uint32_t, std::shared_ptr<UniqueFd>> locks_;  // by shard
};

}  // namespace syncline
