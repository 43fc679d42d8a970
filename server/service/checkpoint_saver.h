// The thread on which a server writes checkpoints, so that no engine ever waits for a
// disk. Engines hand over the copies that their shards make. Copies that wait to be
// written are limited by the memory that the server has left. A checkpoint that would
// need more is given up, and the job continues.
//
//   saver.Begin({.job = 7, .name = "night", .run = 2, .layout = ..., .blocks = ...});
//   saver.Take(7, engine, copied);  // on the engine's thread; is_first: start of a cut
//   saver.Take(7, engine, done);    // -> options.written({.job = 7, .step = ..., ...})
//
// Thread safety: any thread except its own may call the methods. Only Stop waits for the
// disk.
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
    BlobStore* store = nullptr;  // must outlive the saver
    Logger log = {};
    // Both are called on the saver's thread.
    std::function<void(CheckpointWritten)> written;
    // A copy is written, and the cut has more of them (ShardCopied::more). The engine
    // copies the next frozen block only now, so frozen blocks take the memory of one
    // copy.
    std::function<void(uint32_t job, uint32_t engine, uint64_t step)> next;
  };
  // The part of a job that this server has.
  struct SavedJob {
    uint32_t job = 0;
    std::string name = {};
    uint32_t run = 0;
    std::optional<CheckpointName> resumed_from = {};
    uint32_t first_shard = 0;  // the shard of the job that engine 0 has
    std::shared_ptr<const CheckpointLayout> layout = {};
    std::vector<std::vector<ShardBlock>> blocks = {};  // by engine
  };

  explicit CheckpointSaver(Options options);
  ~CheckpointSaver();  // stops

  // Makes the job known, so that Take accepts its copies.
  void Begin(SavedJob job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes `step` the last step of the job: no engine will get to a later one. If it was
  // written before, it is written again. REQUIRES: it is not being written.
  void BeginLast(uint32_t job, uint64_t step) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives up the checkpoint of the job that is being written.
  void Drop(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Limits the bytes of copies that wait. Empty: no limit.
  void Limit(std::optional<uint64_t> bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  struct Taken {
    // The first copy of that version. The other engines should be told to cut there.
    bool is_first = false;
    // The copy is kept until it is written. Otherwise `next` is not called for it.
    bool is_kept = false;
  };
  // Takes a copy of a block, or the end of an engine's cut. The checkpoint is written
  // when all engines of the job have reached the end. A failure ends only that
  // checkpoint.
  Taken Take(uint32_t job, uint32_t engine, const ShardCopied& copied)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(uint32_t job, uint32_t engine, const ShardCutDone& done)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives up everything that is not written yet, and waits for the thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The checkpoint of one version of a job.
  struct Save {
    absl::Duration began = {};
    absl::Status status = {};
    std::set<uint32_t> engines = {};  // those that have not finished
    std::vector<CheckpointFile> files = {};
    TrainingSettings training = {};
  };
  struct Job {
    std::shared_ptr<const SavedJob> about;
    std::map<uint64_t, Save> saves = {};  // by step
    std::set<uint64_t> ended = {};        // latest steps whose save is over
    uint64_t last = std::numeric_limits<uint64_t>::max();  // no later step is saved
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
    bool is_last = false;  // nothing of the job follows
  };
  using PartId = std::pair<std::pair<uint32_t, uint64_t>, uint32_t>;  // job, step, engine

  Save* FindSave(uint32_t job, uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::pair<Save*, bool> SaveOf(Job& job, uint64_t step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Handle(const Event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Write(const Event& event, std::vector<CheckpointFile>& files);
  absl::StatusOr<std::unique_ptr<PartWriter>> Open(const Event& event) const;
  void Finish(const Event& event, std::vector<CheckpointFile> files)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const SteadyClock clock_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> limit_ ABSL_GUARDED_BY(mutex_);
  uint64_t held_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of copies that wait
  std::map<uint32_t, Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);

  // Used by the saver's thread only.
  std::map<PartId, std::unique_ptr<PartWriter>> parts_;
  // Pairs (job, engine) whose frozen blocks differed from those of an earlier checkpoint.
  // Removed when a part that has all of them is written.
  std::set<std::pair<uint32_t, uint32_t>> unshared_;

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
