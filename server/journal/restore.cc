#include "server/journal/restore.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/load.h"
#include "server/checkpoint/reader.h"
#include "server/journal/folder.h"
#include "server/journal/record_player.h"
#include "server/journal/rule.h"

namespace syncline {
namespace {

absl::Status Failed(const char* what, const std::string& path, int error) {
  return absl::InternalError(
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

// Deletes what follows `place`, which was not reported as durable. Syncs what stays,
// which may not be on the disk yet.
absl::Status Cut(const std::vector<std::string>& segments,
                 const ShardRecords::Place& place) {
  for (size_t i = place.segments; i < segments.size(); ++i) {
    if (unlink(segments[i].c_str()) != 0) return Failed("delete", segments[i], errno);
  }
  const std::string& last = segments[place.segments - 1];
  const UniqueFd fd(open(last.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return Failed("open", last, errno);
  if (ftruncate(fd.get(), static_cast<off_t>(place.bytes)) != 0) {
    return Failed("cut", last, errno);
  }
  if (fsync(fd.get()) != 0) return Failed("sync", last, errno);
  return SyncFolder(std::filesystem::path(last).parent_path().string());
}

PlayedFrom PlayedFromOf(const ShardRecords& records) {
  if (records.begins_anew()) return PlayedFrom::kSnapshot;
  const bool is_whole = records.head().first_sequence <= 1;
  return is_whole && !records.head().began_from ? PlayedFrom::kNothing
                                                : PlayedFrom::kCheckpoint;
}

uint32_t NumberOf(const std::string& segment) {
  return ParseSegmentName(std::filesystem::path(segment).filename().string())->number;
}

// Plays the records of one shard and notes how far they can be kept.
class Player {
 public:
  Player(ShardRecords& records, const std::vector<std::string>& segments, Shard& shard)
      : records_(records), segments_(segments), shard_(shard) {}

  absl::StatusOr<ShardTail> Play(PlayedFrom beginning);

 private:
  void Note(const std::map<uint32_t, uint64_t>& versions);

  ShardRecords& records_;
  const std::vector<std::string>& segments_;
  Shard& shard_;
  ShardRecords::Place whole_;
  std::vector<uint64_t> reached_;  // highest version, by segment
  ShardTail tail_;
};

// Notes that everything read so far is complete without what follows.
void Player::Note(const std::map<uint32_t, uint64_t>& versions) {
  whole_ = records_.place();
  reached_.resize(whole_.segments);
  for (const auto& [block, version] : versions) {
    reached_.back() = std::max(reached_.back(), version);
  }
}

absl::StatusOr<ShardTail> Player::Play(PlayedFrom beginning) {
  RecordPlayer player(shard_,
                      {.beginning = beginning,
                       .records = segments_.front() + " and the segments after it",
                       .whose = "what the server that wrote the journal had"});
  Note({});
  for (;;) {
    SYNCLINE_ASSIGN_OR_RETURN(auto record, records_.Next());
    if (!record) break;
    if (std::holds_alternative<SettingsRecord>(record->what)) {
      AddSettings(std::make_shared<const ShardRecord>(*record), tail_.settings);
    }
    const auto* state = std::get_if<BlockStateRecord>(&record->what);
    const bool begins = state != nullptr && shard_.HasBlock(state->block) &&
                        !shard_.HasValues(state->block);
    if (begins) {
      tail_.anew_version = std::max(tail_.anew_version, state->saved->version);
    }
    SYNCLINE_RETURN_IF_ERROR(player.Take(*std::move(record)));
    if (player.is_whole()) Note(player.versions());
  }
  SYNCLINE_RETURN_IF_ERROR(player.CheckWhole());
  tail_.versions = player.versions();
  SYNCLINE_RETURN_IF_ERROR(Cut(segments_, whole_));
  for (size_t i = 0; i < whole_.segments; ++i) {
    std::error_code ignored;
    tail_.segments.push_back({.path = segments_[i],
                              .version = reached_[i],
                              .bytes = static_cast<uint64_t>(
                                  std::filesystem::file_size(segments_[i], ignored))});
  }
  tail_.last_number = NumberOf(segments_.back());
  tail_.next_sequence = whole_.next_sequence;
  shard_.BeginAgain();
  return std::move(tail_);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunRestore>> RunRestore::Open(RunRestoreOptions options) {
  const std::string folder =
      absl::StrCat(options.directory, "/", FolderOf(options.job), "/", options.run);
  std::map<uint32_t, std::shared_ptr<UniqueFd>> locks;
  for (const uint32_t shard : options.shards) {
    SYNCLINE_ASSIGN_OR_RETURN(
        UniqueFd lock,
        LockFile(absl::StrCat(folder, "/", LockName(shard, options.generation))));
    locks[shard] = std::make_shared<UniqueFd>(std::move(lock));
  }
  SYNCLINE_ASSIGN_OR_RETURN(JournalRun run,
                            FindRun({options.directory}, options.job, options.run));
  for (const uint32_t shard : options.shards) {
    if (!run.shards.contains(shard)) {
      return absl::NotFoundError(
          absl::StrCat("no journal of shard ", shard, " is in ", folder));
    }
    if (run.generations.at(shard) == options.generation) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("in ", folder, " the journal of shard ", shard, " has generation ",
                     run.generations.at(shard),
                     ", but the job continues from generation ", options.generation));
  }
  std::unique_ptr<RunRestore> restore(new RunRestore(std::move(options), std::move(run)));
  restore->locks_ = std::move(locks);
  return restore;
}

absl::StatusOr<uint64_t> RunRestore::ReachedBy(
    const std::vector<std::string>& segments) const {
  SYNCLINE_ASSIGN_OR_RETURN(const auto records, ShardRecords::Open(segments));
  uint64_t reached = 0;
  for (;;) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto record, records->Next());
    if (!record) return reached;
    const auto* step = std::get_if<StepRecord>(&record->what);
    if (step != nullptr) reached = std::max(reached, step->step + 1);
  }
}

// Loads the checkpoint that the records follow; the journal does not contain its values.
absl::Status RunRestore::Begin(const ShardRecords& records,
                               const std::vector<ShardBlock>& blocks, uint64_t reached,
                               Shard& shard) {
  const SegmentHead& head = records.head();
  const bool is_whole = head.first_sequence <= 1;
  std::optional<CheckpointName> name;
  if (is_whole) {
    name = head.began_from;
  } else if (options_.checkpoints != nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(
        const auto all, ListCheckpoints(*options_.checkpoints, FolderOf(options_.job)));
    for (const CheckpointInfo& one : all) {
      const bool fits = one.is_complete && one.name.run == head.checkpoint_run &&
                        one.name.step <= reached;
      if (fits && (!name || one.name.step > name->step)) name = one.name;
    }
  }
  if (!name || options_.checkpoints == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the journal of shard ", head.shard,
        " begins after a checkpoint, and this server finds none; start it with the "
        "--checkpoint-dir of the others"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto reader,
      CheckpointReader::Open(*options_.checkpoints, options_.job, *name));
  SYNCLINE_RETURN_IF_ERROR(reader->CheckTensors(options_.layout->tensors));
  return LoadBlocks(*reader, *options_.layout, blocks, shard);
}

absl::StatusOr<ShardTail> RunRestore::Play(uint32_t number,
                                           const std::vector<ShardBlock>& blocks,
                                           Shard& shard) {
  const std::vector<std::string>& segments = run_.shards.at(number);
  SYNCLINE_ASSIGN_OR_RETURN(const auto records, ShardRecords::Open(segments));
  std::vector<uint32_t> ids;
  for (const ShardBlock& block : blocks) ids.push_back(block.block);
  if (records->head().blocks != ids) {
    return absl::FailedPreconditionError(absl::StrCat(
        segments.front(), " contains different blocks from those of the shard"));
  }
  if (options_.layout != nullptr) {
    SYNCLINE_RETURN_IF_ERROR(
        CheckRule(records->head(), segments.front(), *options_.layout, blocks));
  }
  const PlayedFrom beginning = PlayedFromOf(*records);
  if (beginning == PlayedFrom::kCheckpoint) {
    uint64_t reached = 0;
    if (records->head().first_sequence > 1) {
      SYNCLINE_ASSIGN_OR_RETURN(reached, ReachedBy(segments));
    }
    SYNCLINE_RETURN_IF_ERROR(Begin(*records, blocks, reached, shard));
  }
  SYNCLINE_ASSIGN_OR_RETURN(ShardTail tail,
                            Player(*records, segments, shard).Play(beginning));
  tail.lock = locks_.at(number);
  tail.generation = options_.generation;
  const auto superseded = run_.superseded.find(number);
  if (superseded == run_.superseded.end()) return tail;
  for (const std::string& segment : superseded->second) {
    if (unlink(segment.c_str()) != 0) return Failed("delete", segment, errno);
    tail.last_number = std::max(tail.last_number, NumberOf(segment));
  }
  return tail;
}

}  // namespace syncline
