// The thread on which the coordinator's service carries out what concerns checkpoints
// (server/coordinator/checkpoint_orders.h): a disk that is slow, or does not answer at all,
// holds up no job.
//
//   CheckpointKeeper keeper(store, [&](CheckpointAnswer answer) { ... });
//   keeper.Order(order);
//
// Thread safety: all methods from any thread but its own.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/steady_condition.h"
#include "server/checkpoint/blob_store.h"
#include "server/coordinator/checkpoint_orders.h"

namespace syncline {

class CheckpointKeeper {
 public:
  // `store` outlives it. `done` is called on its thread.
  CheckpointKeeper(BlobStore& store, Logger log,
                   std::function<void(CheckpointAnswer)> done);
  ~CheckpointKeeper();  // stops

  void Order(CheckpointOrder order) ABSL_LOCKS_EXCLUDED(mutex_);
  // Finishes what was ordered.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void CarryOut(const FindCheckpoint& order);
  void CarryOut(const KeepCheckpoint& order);
  void CarryOut(const DiscardCheckpoint& order);
  void CarryOut(const SettleCheckpoints& order) { done_(CheckpointsSettled{order.job}); }
  // Looks again for a while: a network file system may show late what others wrote.
  absl::Status AwaitParts(const Manifest& manifest) ABSL_LOCKS_EXCLUDED(mutex_);

  BlobStore& store_;
  const Logger log_;
  const std::function<void(CheckpointAnswer)> done_;

  const SteadyClock clock_;
  absl::Mutex mutex_;
  SteadyCondition changed_;  // stopping_
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<CheckpointOrder> orders_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
