// The thread that carries out the coordinator's orders about checkpoints
// (server/coordinator/checkpoint_orders.h). A disk that is slow or does not answer
// therefore delays no job.
//
//   CheckpointKeeper keeper(store, [&](CheckpointAnswer answer) { ... });
//   keeper.Order(order);
//
// Thread safety: any thread except its own may call the methods.
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
  // `store` must outlive the keeper. `done` is called on the keeper's thread.
  CheckpointKeeper(BlobStore& store, Logger log,
                   std::function<void(CheckpointAnswer)> done);
  ~CheckpointKeeper();  // stops

  void Order(CheckpointOrder order) ABSL_LOCKS_EXCLUDED(mutex_);
  // Finishes everything that was ordered.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void CarryOut(const FindCheckpoint& order);
  void CarryOut(const KeepCheckpoint& order);
  void CarryOut(const DiscardCheckpoint& order);
  void CarryOut(const SettleCheckpoints& order) { done_(CheckpointsSettled{order.job}); }
  // Checks that the parts exist, and repeats that for a while: a network file system may
  // show late what others wrote.
  absl::Status AwaitParts(const Manifest& manifest) ABSL_LOCKS_EXCLUDED(mutex_);

  BlobStore& store_;
  const Logger log_;
  const std::function<void(CheckpointAnswer)> done_;

  const SteadyClock clock_;
  absl::Mutex mutex_;
  SteadyCondition changed_;  // signalled when stopping_ is set
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<CheckpointOrder> orders_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
