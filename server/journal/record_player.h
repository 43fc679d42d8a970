// Plays the records of one shard, in order, and compares digests. Those of blocks that step
// together are played together, or not at all.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/shard/record.h"
#include "server/shard/shard.h"

namespace syncline {

// What a shard has before its first record.
enum class PlayedFrom {
  kNothing,     // its blocks begin with their seeds, or with their states
  kCheckpoint,  // all blocks
  kSnapshot,    // nothing, and records of a block count from its state on
};

// Which records are to be played. A block's state is for a shard that lacks the block: one
// that was played up to there is there already.
class RecordFilter {
 public:
  explicit RecordFilter(PlayedFrom beginning) : beginning_(beginning) {}

  // REQUIRES: the shard has been given all that were taken.
  bool Takes(const ShardRecord& record, const Shard& shard);
  // DataLoss when a block whose records were passed over has not come. At the end.
  absl::Status CheckWhole(const Shard& shard, const std::string& records) const;

 private:
  const PlayedFrom beginning_;
  bool has_job_ = false;            // as a whole: what it had is there
  std::set<uint32_t> passed_over_;  // blocks
};

struct RecordPlayerOptions {
  PlayedFrom beginning = PlayedFrom::kNothing;
  std::string records = {};  // what they are called in errors
  std::string whose = {};    // from what a block differs, in errors
};

class RecordPlayer {
 public:
  // The shard outlives it.
  RecordPlayer(Shard& shard, RecordPlayerOptions options)
      : shard_(shard), options_(std::move(options)), filter_(options_.beginning) {}

  // DataLoss when it cannot be played, or leads elsewhere than it says.
  absl::Status Take(ShardRecord record);
  // What was played makes sense without what follows.
  bool is_whole() const { return waiting_.empty(); }
  // After the last: DataLoss when a block lacks its values.
  absl::Status CheckWhole() const { return filter_.CheckWhole(shard_, options_.records); }
  const std::map<uint32_t, uint64_t>& versions() const { return versions_; }

 private:
  absl::Status Flush();
  absl::Status PlayOne(const ShardRecord& record);

  Shard& shard_;
  const RecordPlayerOptions options_;
  RecordFilter filter_;
  std::vector<ShardRecord> waiting_;
  std::map<uint32_t, uint64_t> versions_;  // of blocks that were played
};

}  // namespace syncline
