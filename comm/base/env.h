// What the outside gives to the program: so far, time. State machines take times as
// inputs; shells ask a Clock that is handed to them, so that tests and the simulation
// decide what time it is.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace syncline {

// Thread safety: implementations may be asked from any thread.
class Clock {
 public:
  virtual ~Clock() = default;

  // Time since an arbitrary start; never goes back, and does not jump when the wall clock
  // is set.
  virtual absl::Duration Now() const = 0;
};

// Counts from its own construction.
class SteadyClock final : public Clock {
 public:
  SteadyClock();
  absl::Duration Now() const override;

 private:
  const absl::Duration start_;
};

// Stands still until it is told otherwise.
class FakeClock final : public Clock {
 public:
  absl::Duration Now() const override;
  // REQUIRES: by >= 0.
  void Advance(absl::Duration by);

 private:
  mutable absl::Mutex mutex_;
  absl::Duration now_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
};

}  // namespace syncline
