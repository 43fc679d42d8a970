// Plays the records of one shard, in order, and compares digests. Those of blocks that step
// together are played together, or not at all.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/shard/record.h"
#include "server/shard/shard.h"

namespace syncline {

struct RecordPlayerOptions {
  bool has_seeds = true;     // false: the shard began with a checkpoint
  std::string records = {};  // what they are called in errors
  std::string whose = {};    // from what a block differs, in errors
};

class RecordPlayer {
 public:
  // The shard outlives it.
  RecordPlayer(Shard& shard, RecordPlayerOptions options)
      : shard_(shard), options_(std::move(options)) {}

  // DataLoss when it cannot be played, or leads elsewhere than it says.
  absl::Status Take(ShardRecord record);
  // What was played makes sense without what follows.
  bool is_whole() const { return waiting_.empty(); }
  const std::map<uint32_t, uint64_t>& versions() const { return versions_; }

 private:
  absl::Status Flush();
  absl::Status PlayOne(const ShardRecord& record);

  Shard& shard_;
  const RecordPlayerOptions options_;
  std::vector<ShardRecord> waiting_;
  std::map<uint32_t, uint64_t> versions_;  // of blocks that were played
};

}  // namespace syncline
