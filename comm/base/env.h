// Clocks. State machines take times as inputs; their shells use a Clock that is passed to
// them, so that tests and the simulation control the time.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace syncline {

// Thread safety: any thread may call any implementation.
class Clock {
 public:
  virtual ~Clock() = default;

  // Returns the time since an arbitrary start. Never decreases, and does not jump when
  // the wall clock is set.
  virtual absl::Duration Now() const = 0;
};

// A clock that starts when it is constructed.
class SteadyClock final : public Clock {
 public:
  SteadyClock();
  absl::Duration Now() const override;

 private:
  const absl::Duration start_;
};

// A clock that shows the same time until Advance is called.
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
