// Repeats a job from its journal: takes what its shards began with and plays their
// records with the shards' own code. The result is an ordinary checkpoint, which can be
// verified, exported, and resumed from.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const ReplaySummary done, ReplayInto(options, *store));
//
// Shards are played one after the other, so only one of them is in memory at a time.
//
// Thread safety: free functions without shared state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/part.h"
#include "server/journal/run.h"
#include "server/shard/shard.h"

namespace syncline {

enum class Digests { kIgnored, kCompared };

struct ReplayOptions {
  JournalRun run = {};
  // The job's options. The replay sets the number of each shard.
  ShardOptions shard = {};
  std::vector<BlockRange> blocks = {};  // of the job
  std::shared_ptr<const CheckpointLayout> layout = {};
  // What a checkpoint says about the job: codecs, declared settings, tensors.
  Manifest about = {};
  BlobStore* checkpoints = nullptr;  // of the job; null: there are none
  // The step to play to. Empty: as far as all blocks are complete, in whole updates.
  std::optional<uint64_t> to = std::nullopt;
  Digests digests = Digests::kIgnored;
};

struct ReplaySummary {
  CheckpointName name = {};  // of the checkpoint that was made
  uint64_t records = 0;      // played
  uint64_t compared = 0;     // digests compared
  // The lowest version that can be reached with what there is.
  uint64_t first = 0;
  // The highest version that all blocks have a record for.
  uint64_t last = 0;
  std::string began = {};              // "the first values", "checkpoint run1-step40"
  std::vector<std::string> torn = {};  // notes for users about incomplete journals
};

// Plays the run and writes a checkpoint to `out`. Fails with FailedPrecondition if the
// step cannot be reached with what there is. Fails with AlreadyExists if `out` has that
// checkpoint or, if no step is given, a checkpoint is further. Fails with DataLoss if the
// journal is damaged or, with kCompared, a digest differs; the message names block, step
// and shard.
absl::StatusOr<ReplaySummary> ReplayInto(const ReplayOptions& options, BlobStore& out);

}  // namespace syncline
