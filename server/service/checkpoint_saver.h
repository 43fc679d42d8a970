// The thread on which a server writes checkpoints, so that no engine ever waits for a disk.
// Engines hand over the copies that their shards make; what waits to be written is bounded
// by the memory that the server has left: a checkpoint that would take more is given up,
// the job goes on.
//
//   saver.Begin({.job = 7, .name = "night", .run = 2, .layout = ..., .blocks = ...});
//   saver.Take(7, engine, copied);  // on the engine's thread; true: the first of a cut
//   saver.Take(7, engine, done);    // -> options.written({.job = 7, .step = ..., ...})
//
// Thread safety: all methods from any thread but its own; none waits for the disk but Stop.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "server/checkpoint/blob_store.h"
#include "server/checkpoint/part.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

class CheckpointSaver {
 public:
  struct Options {
    BlobStore* store = nullptr;  // outlives it
    Logger log = {};
    // Both on its thread.
    std::function<void(CheckpointWritten)> written;
    // What was copied last is written, and there is more (ShardCopied::more): so what is
    // frozen takes no more memory than one block.
    std::function<void(uint32_t job, uint32_t engine, uint64_t step)> next;
  };
  // What a server has of a job.
  struct SavedJob {
    uint32_t job = 0;
    std::string name = {};
    uint32_t run = 0;
    uint32_t first_shard = 0;  // engine 0 is that shard of the job
    std::shared_ptr<const CheckpointLayout> layout = {};
    std::vector<std::vector<ShardBlock>> blocks = {};  // of each engine
  };

  explicit CheckpointSaver(Options options);
  ~CheckpointSaver();  // stops

  void Begin(SavedJob job) ABSL_LOCKS_EXCLUDED(mutex_);
  // That step is the last one: no engine gets to a later one, and what was written of it
  // before is written again. REQUIRES: it is not being written.
  void BeginLast(uint32_t job, uint64_t step) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives up what is being written of it.
  void Drop(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // How many bytes of copies may wait; nothing: any.
  void Limit(std::optional<uint64_t> bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  struct Taken {
    bool is_first = false;  // of that version: the other engines should be told of it
    bool is_kept = false;   // until it is written; otherwise nothing follows from it
  };
  Taken Take(uint32_t job, uint32_t engine, const ShardCopied& copied)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(uint32_t job, uint32_t engine, const ShardCutDone& done)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives up what is not written yet.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One version of a job.
  struct Save {
    absl::Duration began = {};
    absl::Status status = {};
    std::set<uint32_t> engines = {};  // that have still to finish
    std::vector<CheckpointFile> files = {};
    TrainingSettings training = {};
  };
  struct Job {
    std::shared_ptr<const SavedJob> about;
    std::map<uint64_t, Save> saves = {};                   // by step
    std::set<uint64_t> ended = {};                         // the last steps that are over
    uint64_t last = std::numeric_limits<uint64_t>::max();  // none comes after this step
  };
  struct Event {
    uint32_t job = 0;
    uint64_t step = 0;
    uint32_t engine = 0;
    std::shared_ptr<const SavedJob> about = {};
    uint32_t block = 0;
    std::shared_ptr<const BlockSnapshot> saved = {};  // null: the cut is done
    std::shared_ptr<const ShardSnapshot> rest = {};
    TrainingSettings training = {};
    uint64_t bytes = 0;
    bool more = false;
  };
  using PartId = std::pair<std::pair<uint32_t, uint64_t>, uint32_t>;  // job, step, engine

  Save* FindSave(uint32_t job, uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::pair<Save*, bool> SaveOf(Job& job, uint64_t step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Handle(const Event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Write(const Event& event, std::vector<CheckpointFile>& files);
  void Finish(const Event& event, std::vector<CheckpointFile> files)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const SteadyClock clock_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> limit_ ABSL_GUARDED_BY(mutex_);
  uint64_t held_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of copies
  std::map<uint32_t, Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);

  std::map<PartId, std::unique_ptr<PartWriter>> parts_;  // of its thread

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
