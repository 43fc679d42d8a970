// The backup of one shard of another server (ADR 29): takes its records as they come, plays
// them on a thread of its own, and compares digests. Once it is told to finish it gives
// the shard out as the dead server's had it.
//
//   BackupShard backup({.trained = blocks, .on_room = ack}, std::move(part));
//   if (*backup.Take(record)) ack();        // otherwise on_room is called later
//   ... the server dies ...
//   BackupShard::Finished finished = *backup.Finish();
//
// Thread safety: Take and Finish from any thread, Finish once, and no Take after it. Events
// come from its own thread.
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
  std::vector<uint32_t> trained = {};  // its blocks, without frozen ones
  bool has_seeds = true;               // the job began with no checkpoint
  std::string whose = {};              // from what a digest differs, for people
  // Of records that are not played yet. With more, the server waits.
  uint64_t room_bytes = uint64_t{256} << 20;
  std::function<void()> on_room = [] {};
  // What came cannot be played, or leads elsewhere; nothing is taken any more.
  std::function<void(const absl::Status&)> on_lost = [](const absl::Status&) {};
};

class BackupShard {
 public:
  BackupShard(BackupShardOptions options, EngineJob part);
  ~BackupShard();  // what is not played yet is forgotten
  BackupShard(const BackupShard&) = delete;
  BackupShard& operator=(const BackupShard&) = delete;

  // Whether there is room for the next ones; if not, on_room follows once there is. Any
  // record is taken. DataLoss when it is lost, FailedPrecondition once it is finished.
  absl::StatusOr<bool> Take(std::vector<std::byte> record) ABSL_LOCKS_EXCLUDED(mutex_);

  // Plays what is there, and ends. DataLoss when it cannot.
  struct Finished {
    EngineJob part = {};
    uint64_t step = 0;  // that all trained blocks have reached; all ones when it has none
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
  EngineJob part_;  // of its thread, until that ended; as player_
  RecordPlayer player_;

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool owes_room_ ABSL_GUARDED_BY(mutex_) = false;  // on_room
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::vector<std::byte>> waiting_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
