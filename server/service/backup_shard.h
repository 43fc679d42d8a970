// The backup of one shard of another server (ADR 29). It takes the shard's records as
// they come, plays them on its own thread, and compares digests. Finish then returns the
// shard as the dead server had it.
//
//   BackupShard backup({.trained = blocks, .on_room = ack}, std::move(part));
//   if (*backup.Take(record)) ack();        // otherwise on_room is called later
//   ... the server dies ...
//   BackupShard::Finished finished = *backup.Finish();
//
// Thread safety: any thread may call Take and Finish. Call Finish once, and Take not
// after it. Events are called on the backup's own thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/journal/record_player.h"
#include "server/service/engine.h"

namespace syncline {

struct BackupShardOptions {
  std::vector<uint32_t> trained = {};  // the shard's blocks that are not frozen
  bool has_seeds = true;               // the job began without a checkpoint
  std::string whose = {};              // what a digest differs from, for people
  // Bytes of records that may wait to be played. If more wait, the server must wait.
  uint64_t room_bytes = uint64_t{256} << 20;
  std::function<void()> on_room = [] {};
  // A record cannot be played, or leads to another digest. Nothing is taken any more.
  std::function<void(const absl::Status&)> on_lost = [](const absl::Status&) {};
};

class BackupShard {
 public:
  BackupShard(BackupShardOptions options, EngineJob part);
  ~BackupShard();  // forgets the records that wait
  BackupShard(const BackupShard&) = delete;
  BackupShard& operator=(const BackupShard&) = delete;

  // Takes a record. Returns whether there is room for more; if not, on_room is called
  // once there is. Fails with DataLoss after on_lost, and with FailedPrecondition after
  // Finish.
  absl::StatusOr<bool> Take(std::vector<std::byte> record) ABSL_LOCKS_EXCLUDED(mutex_);

  // Plays all records that were taken, and ends. Fails with DataLoss if it cannot.
  struct Finished {
    EngineJob part = {};
    // The step that all trained blocks have reached. UINT64_MAX: there are no trained
    // blocks.
    uint64_t step = 0;
  };
  absl::StatusOr<Finished> Finish() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class End { kWhenPlayed, kAtOnce };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Play(const std::vector<std::byte>& record);
  void Close(End end) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return waiting_bytes_ <= options_.room_bytes;
  }

  const BackupShardOptions options_;
  // Used by the backup's thread until it has ended, as is player_.
  EngineJob part_;
  RecordPlayer player_;

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool owes_room_ ABSL_GUARDED_BY(mutex_) = false;  // on_room must be called
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::vector<std::byte>> waiting_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
