// When something that is due every so often is due next, however long each time takes.
//
//   Pace pace(clock.Now(), absl::Milliseconds(10));
//   for (;;) { Work(); absl::SleepFor(pace.Rest(clock.Now())); }
//
// What is late is made up for without a rest, up to a second of it: a machine that stood still
// is not flooded afterwards. Thread safety: none.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace syncline {

class Pace {
 public:
  Pace(absl::Duration now, absl::Duration every) : every_(every), due_(now) {}

  // After one time, until the next.
  absl::Duration Rest(absl::Duration now) {
    due_ = std::max(due_ + every_, now - absl::Seconds(1));
    return std::max(due_ - now, absl::ZeroDuration());
  }

 private:
  absl::Duration every_;
  absl::Duration due_;
};

}  // namespace syncline
