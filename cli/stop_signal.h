// Waits for SIGINT and SIGTERM, which all threads that are created later block. The wait
// also ends on requests from within the process: an operator's order (End) or a failed
// service (Fail). Such a request does not count as a signal. If it coincides with a first
// signal from outside, that one still counts as the first.
//
// Thread safety: any thread may call End, Fail and IsPending. All other methods belong to
// the thread that created the object, which must be created before other threads.
//
//   StopSignal stop;
//   absl::StatusOr<int> signal = stop.Wait([&] { UpdateMetrics(); });
//   stop.WaitFor([&] { return HasDrained(); }, limit);
#pragma once

#include <signal.h>

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace syncline {

class StopSignal {
 public:
  StopSignal();

  // Ends Wait as SIGTERM does. Does nothing if the process stops already.
  static void End();

  // Ends both waits; Wait returns the error. Only the first error counts.
  void Fail(const absl::Status& status);

  // Whether a signal has arrived that no wait has returned yet. Any thread.
  bool IsPending() const;

  // Returns the signal. Calls `periodically` every second meanwhile.
  absl::StatusOr<int> Wait(const std::function<void()>& periodically);

  // Returns the signal, or 0 once `condition` holds. Fails like Wait.
  absl::StatusOr<int> WaitUntil(const std::function<bool()>& condition);

  // Waits until `condition` holds, or for `limit`. SIGINT, a second signal and a failure
  // end the wait, too.
  void WaitFor(const std::function<bool()>& condition, absl::Duration limit);

  // Restores the default handling of signals, since the rest of the shutdown may hang,
  // for example on a disk. The next signal from outside ends the process. End and Fail
  // have no effect any more.
  void LeaveTheNextToTheSystem();

 private:
  // Returns the next signal, and counts it if it is from outside. 0: none within `limit`.
  int Next(const timespec& limit);
  absl::Status failure() const;

  sigset_t signals_;
  int from_outside_ = 0;  // number of signals so far
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
