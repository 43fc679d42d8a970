#include "server/service/backup_shard.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "comm/base/status.h"
#include "server/journal/record_bytes.h"

namespace syncline {

BackupShard::BackupShard(BackupShardOptions options, EngineJob part)
    : options_(std::move(options)),
      part_(std::move(part)),
      player_(*part_.shard, {.beginning = options_.has_seeds ? PlayedFrom::kNothing
                                                             : PlayedFrom::kCheckpoint,
                             .records = "the backup's records",
                             .whose = options_.whose}),
      thread_([this] { Run(); }) {}

BackupShard::~BackupShard() {
  Close(End::kAtOnce);
  if (thread_.joinable()) thread_.join();
}

void BackupShard::Close(End end) {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  if (end == End::kAtOnce) waiting_.clear();
}

absl::StatusOr<bool> BackupShard::Take(std::vector<std::byte> record) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(status_);
  if (closed_) return absl::FailedPreconditionError("the backup is over");
  waiting_bytes_ += record.size();
  waiting_.push_back(std::move(record));
  owes_room_ = !HasRoom();
  return !owes_room_;
}

absl::Status BackupShard::Play(const std::vector<std::byte>& record) {
  SYNCLINE_ASSIGN_OR_RETURN(ShardRecord read, ReadRecord(record));
  return player_.Take(std::move(read));
}

void BackupShard::Run() {
  for (;;) {
    std::vector<std::byte> next;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](BackupShard* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
            return self->closed_ || !self->waiting_.empty();
          },
          this));
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const absl::Status played = Play(next);
    bool has_room = false;
    {
      absl::MutexLock lock(&mutex_);
      waiting_bytes_ -= next.size();
      status_ = played;
      has_room = owes_room_ && HasRoom();
      if (has_room) owes_room_ = false;
    }
    if (!played.ok()) return options_.on_lost(played);
    if (has_room) options_.on_room();
  }
}

absl::StatusOr<BackupShard::Finished> BackupShard::Finish() {
  Close(End::kWhenPlayed);
  if (thread_.joinable()) thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(status_);
  }
  Finished finished = {.step = std::numeric_limits<uint64_t>::max()};
  for (const uint32_t block : options_.trained) {
    finished.step = std::min(finished.step, part_.shard->block_version(block));
  }
  part_.shard->BeginAgain();
  finished.part = std::move(part_);
  return finished;
}

}  // namespace syncline
