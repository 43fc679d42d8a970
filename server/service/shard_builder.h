// The thread of a server on which jobs' memory comes and goes: it takes, zeroes and
// touches what a new job needs, and gives back what an old one had, while the engines go
// on with all other jobs. What it is asked for happens in the order of the calls, so that
// the memory of a job that ended is free before the next one's is taken.
//
//   ShardBuilder builder({engine0.get(), engine1.get()});
//   builder.Build({.job = 7, .split = [...] { return SplitJob(...); },
//                  .done = [...](const absl::Status& built) { ... }});
//   builder.Drop(7);
//
// Thread safety: all public methods from any thread but an engine's or the builder's own;
// none waits for memory.
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
    // What each engine gets, in order. An error is the answer to the order.
    std::function<absl::StatusOr<std::vector<EngineJobOptions>>()> split = nullptr;
    // OK: all engines have the job, and what is asked of them now finds it there.
    // Otherwise none of them does. Not called for jobs that are dropped meanwhile.
    std::function<void(const absl::Status&)> done;
    // In place of `split`: the parts as they are to be taken over.
    std::function<absl::StatusOr<std::vector<EngineJob>>()> made = nullptr;
    // Gets the parts in place of the engines.
    std::function<void(std::vector<EngineJob>)> keep = nullptr;
    uint64_t serial = 0;  // the builder's: tells an order from a later one for that job
  };

  // The engines outlive the builder.
  explicit ShardBuilder(std::vector<Engine*> engines);
  ~ShardBuilder();  // stops

  void Build(Order order) ABSL_LOCKS_EXCLUDED(mutex_);
  // Also of jobs that are being built, or were never heard of.
  void Drop(uint32_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Finishes what is under way and forgets the rest. Before the engines stop.
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
  // Ordered and not dropped since: the serial of the latest order for each job.
  std::map<uint32_t, uint64_t> wanted_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_serial_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
