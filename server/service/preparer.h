// The thread that carries out the coordinator's long computations
// (server/coordinator/preparation.h). Orders about small and large jobs take turns, so
// that small ones do not wait behind all large ones.
//
//   Preparer preparer([&](Prepared done) { ... });  // on the preparer's thread
//   preparer.Order(order);
//
// Thread safety: any thread except its own may call the methods.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/coordinator/preparation.h"

namespace syncline {

class Preparer {
 public:
  explicit Preparer(std::function<void(Prepared)> done);
  ~Preparer();  // stops

  void Order(Preparation order) ABSL_LOCKS_EXCLUDED(mutex_);
  // Finishes the order that is under way, and forgets the rest.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  Preparation Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(Prepared)> done_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool small_is_next_ ABSL_GUARDED_BY(mutex_) = true;
  std::deque<Preparation> small_ ABSL_GUARDED_BY(mutex_);
  std::deque<Preparation> large_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all the others
};

}  // namespace syncline
