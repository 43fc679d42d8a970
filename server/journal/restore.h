// Lets a restarted server continue what the one before it wrote. Its shards are rebuilt
// from their records, a torn tail is cut off, and the run continues in further segments.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto run, RunRestore::Open({.directory = "/data/journal",
//                                                         .job = "night",
//                                                         .run = "9f03c1d2a4b5e677",
//                                                         .shards = {3, 4}}));
//   SYNCLINE_ASSIGN_OR_RETURN(ShardTail tail, run->Play(3, blocks, *shard));
//   journal.Begin({.run = ..., .tails = {tail, ...}});
//
// No other process can write these shards while this object, or the journal that
// continues with its tails, is open.
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
  std::vector<uint32_t> shards = {};  // shards that have blocks
  uint32_t generation = 0;            // the only one that is accepted
  // For runs that began with a checkpoint, or whose first segments a checkpoint has
  // replaced.
  BlobStore* checkpoints = nullptr;
  std::shared_ptr<const CheckpointLayout> layout = {};
};

class RunRestore {
 public:
  // Fails with Unavailable while another process still writes one of the shards, and with
  // NotFound if a shard or the run is missing. Other errors name the file.
  static absl::StatusOr<std::unique_ptr<RunRestore>> Open(RunRestoreOptions options);

  // The head of the segments, for those that follow.
  const SegmentHead& head() const { return run_.head; }

  // Plays the records of a shard. REQUIRES: the shard was made for these blocks, and has
  // done nothing. Fails with DataLoss if the records are damaged or a digest differs.
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
