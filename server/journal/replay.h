// A job again, from its journal: what its shards began with, then their records, played by
// the shards' own code. What comes of it is a checkpoint like any other: it can be
// verified, exported, and resumed from.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const ReplaySummary done, ReplayInto(options, *store));
//
// Shards are played one after the other, so that one of them is in memory at a time.
//
// Thread safety: functions.
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
  ShardOptions shard = {};              // of the job; its number is each shard's own
  std::vector<BlockRange> blocks = {};  // of the job
  std::shared_ptr<const CheckpointLayout> layout = {};
  // What a checkpoint of the job says of it: codecs, declared settings, tensors.
  Manifest about = {};
  BlobStore* checkpoints = nullptr;  // of the job, if there are any
  // Nothing: as far as all blocks are complete, in whole updates.
  std::optional<uint64_t> to = std::nullopt;
  Digests digests = Digests::kIgnored;
};

struct ReplaySummary {
  CheckpointName name = {};  // of the checkpoint that was made
  uint64_t records = 0;      // that were played
  uint64_t compared = 0;     // digests
  uint64_t first = 0;      // the lowest version that can be reached from where it begins
  uint64_t last = 0;       // the highest version that all blocks have a record for
  std::string began = {};  // "the first values", "checkpoint run1-step40"
  std::vector<std::string> torn = {};  // for people
};

// FailedPrecondition when the step cannot be reached from what is there; AlreadyExists when
// `out` has that checkpoint or, without a step, a checkpoint is further; DataLoss when the
// journal is damaged or, with `kCompared`, a digest differs: names block, step and shard.
absl::StatusOr<ReplaySummary> ReplayInto(const ReplayOptions& options, BlobStore& out);

}  // namespace syncline
