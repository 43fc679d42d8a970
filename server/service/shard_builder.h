// The thread of a server that allocates and frees the memory of jobs. It allocates,
// zeroes and touches the memory of a new job, and frees that of an old one, while the
// engines continue with all other jobs. Orders are carried out in the order of the calls,
// so the memory of a job that ended is free before the next job's is allocated.
//
//   ShardBuilder builder({engine0.get(), engine1.get()});
//   builder.Build({.job = 7, .split = [...] { return SplitJob(...); },
//                  .done = [...](const absl::Status& built) { ... }});
//   builder.Drop(7);
//
// Thread safety: any thread may call the public methods, except the engines' and the
// builder's own. None of them waits for memory.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/service/engine.h"

namespace syncline {

class ShardBuilder {
 public:
  struct Order {
    uint32_t job = 0;
    // Returns the part of each engine, in order. An error becomes the result of the
    // order.
    std::function<absl::StatusOr<std::vector<EngineJobOptions>>()> split = nullptr;
    // OK: all engines have the job, and orders to them will find it. Otherwise no engine
    // has it. Not called if the job was dropped in the meantime.
    std::function<void(const absl::Status&)> done;
    // Replaces `split`: returns parts that are built already.
    std::function<absl::StatusOr<std::vector<EngineJob>>()> made = nullptr;
    // Receives the parts instead of the engines.
    std::function<void(std::vector<EngineJob>)> keep = nullptr;
    // Set by the builder. Tells an order from a later one for the same job.
    uint64_t serial = 0;
  };

  // The engines must outlive the builder.
  explicit ShardBuilder(std::vector<Engine*> engines);
  ~ShardBuilder();  // stops

  // Orders the shards of a job.
  void Build(Order order) ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops a job. It may be under construction, or unknown.
  void Drop(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Finishes the task that is under way, and forgets the rest. Call it before the engines
  // stop.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Post(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsWanted(const Order& order) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Make(const Order& order) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finish(const Order& order) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<Engine*> engines_;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  // Jobs that were ordered and not dropped since: the serial of the latest order.
  std::map<uint32_t, uint64_t> wanted_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_serial_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
