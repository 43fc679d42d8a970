// Waits for SIGINT and SIGTERM, which every thread that is made later leaves to it. What
// ends the process from within, an operator's order or a service that failed, ends the wait
// as well, and counts as no signal: however it crosses with one, a signal that is the first
// from outside is the first.
//
// Thread safety: End, Fail and IsPending may be called from any thread, the others belong to the one
// that made it, before it makes others.
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

  // Ends Wait as SIGTERM does. Does nothing to a process that stops already.
  static void End();

  // Ends both waits; Wait returns the error. Only the first one counts.
  void Fail(const absl::Status& status);

  // Whether one has come that nobody has waited for yet. Any thread.
  bool IsPending() const;

  // The signal. Calls `periodically` meanwhile, each second.
  absl::StatusOr<int> Wait(const std::function<void()>& periodically);

  // The signal, or 0 once that is so. An error as with Wait.
  absl::StatusOr<int> WaitUntil(const std::function<bool()>& condition);

  // Until that is so, or that long. SIGINT, a second signal and a failure end it, too.
  void WaitFor(const std::function<bool()>& condition, absl::Duration limit);

  // What is stopped from here on may hang, on a disk for example: the next signal from
  // outside ends the process as if nobody handled it. End and Fail do nothing any more.
  void LeaveTheNextToTheSystem();

 private:
  // The next signal, counted if it is from outside; 0 when none comes within `limit`.
  int Next(const timespec& limit);
  absl::Status failure() const;

  sigset_t signals_;
  int from_outside_ = 0;  // signals so far
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
