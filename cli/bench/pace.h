// Keeps a periodic task at its pace, however long each run takes.
//
//   Pace pace(clock.Now(), absl::Milliseconds(10));
//   for (;;) { Work(); absl::SleepFor(pace.Rest(clock.Now())); }
//
// Runs that are late follow without a pause, up to one second of them. After a longer
// standstill the machine is thus not flooded. Thread safety: none.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace syncline {

class Pace {
 public:
  Pace(absl::Duration now, absl::Duration every) : every_(every), due_(now) {}

  // Returns the time to sleep after a run.
  absl::Duration Rest(absl::Duration now) {
    due_ = std::max(due_ + every_, now - absl::Seconds(1));
    return std::max(due_ - now, absl::ZeroDuration());
  }

 private:
  absl::Duration every_;
  absl::Duration due_;
};

}  // namespace syncline
