// Plays the records of one shard in order and compares digests. Records of blocks that
// step together are played together or not at all.
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
  kNothing,     // its blocks begin with their seeds or states
  kCheckpoint,  // all blocks
  // Nothing. Records of a block count only after its state.
  kSnapshot,
};

// Decides which records to play. The state of a block is only for a shard that lacks the
// block; a shard that was played up to there has it already.
class RecordFilter {
 public:
  explicit RecordFilter(PlayedFrom beginning) : beginning_(beginning) {}

  // Returns whether to play the record. REQUIRES: all records accepted before have been
  // played.
  bool Takes(const ShardRecord& record, const Shard& shard);
  // Call it at the end. Fails with DataLoss if records of a block were skipped and its
  // state has never come.
  absl::Status CheckWhole(const Shard& shard, const std::string& records) const;

 private:
  const PlayedFrom beginning_;
  bool has_job_ = false;            // state of the job as a whole is there
  std::set<uint32_t> passed_over_;  // blocks
};

struct RecordPlayerOptions {
  PlayedFrom beginning = PlayedFrom::kNothing;
  std::string records = {};  // name of the records in errors
  std::string whose = {};    // what a block differs from, in errors
};

class RecordPlayer {
 public:
  // The shard must outlive the player.
  RecordPlayer(Shard& shard, RecordPlayerOptions options)
      : shard_(shard), options_(std::move(options)), filter_(options_.beginning) {}

  // Plays the record. Fails with DataLoss if it cannot be played, or if a digest differs.
  absl::Status Take(ShardRecord record);
  // Returns whether everything that was taken has been played: no record waits for
  // others.
  bool is_whole() const { return waiting_.empty(); }
  // Call it after the last record. Fails with DataLoss if a block lacks its values.
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
