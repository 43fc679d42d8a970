// A condition variable whose timed waits use the monotonic clock. absl::CondVar converts
// a timeout to wall-clock time, so that setting the clock back by a minute would stop
// heartbeats for a minute.
//
//   absl::Mutex mutex;
//   SteadyCondition changed;
//   absl::MutexLock lock(&mutex);
//   const absl::Duration deadline = clock.Now() + absl::Seconds(1);
//   while (!done && changed.WaitUntil(mutex, clock, deadline)) {}
//
// Waits may return spuriously: test the condition again. Thread safety: any thread, like
// absl::CondVar.
#pragma once

#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"

namespace syncline {

class SteadyCondition {
 public:
  // Releases `mutex` while it waits. Infinite waits are allowed.
  void WaitFor(absl::Mutex& mutex, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Waits until `deadline`. Returns false, without waiting, if it has passed.
  bool WaitUntil(absl::Mutex& mutex, const Clock& clock, absl::Duration deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Wait(absl::Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    WaitFor(mutex, absl::InfiniteDuration());
  }
  void SignalAll() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace syncline
