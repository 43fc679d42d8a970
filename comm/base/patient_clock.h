// A clock that does not count time in which its own process did not run.
//
// A process that judges peers by their silence must not count time in which it could not
// hear them. After SIGSTOP, a slow disk under a lock, or a host that stole the processor,
// all peers seem to have been silent. The owner calls Advance at least every `planned`. A
// longer gap counts as `planned` only. The clock then stops for `settle`, so that
// messages which arrived meanwhile are processed before any peer is judged.
//
//   PatientClock patient({.planned = tick, .longest_gap = 2 * tick, .settle = 2 * tick});
//   const absl::Duration now = patient.Advance(steady.Now());  // leases go by `now`
//
// Pure: times come in as numbers. Not thread-safe.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace syncline {

class PatientClock {
 public:
  struct Options {
    absl::Duration planned;      // longest planned time between two calls of Advance
    absl::Duration longest_gap;  // longer gaps are pauses; >= planned
    absl::Duration settle;       // how long the clock stops after a pause
  };

  explicit PatientClock(const Options& options) : options_(options) {}

  // Returns the patient time at `steady`. Neither may ever decrease.
  absl::Duration Advance(absl::Duration steady) {
    const absl::Duration gap = steady - last_;
    if (gap > options_.longest_gap) {
      now_ += options_.planned;
      settled_at_ = steady + options_.settle;
      ++pauses_;
    } else {
      now_ += std::max(steady - std::max(last_, settled_at_), absl::ZeroDuration());
    }
    last_ = steady;
    return now_;
  }

  int pauses() const { return pauses_; }

 private:
  const Options options_;
  absl::Duration last_ = absl::ZeroDuration();
  absl::Duration settled_at_ = absl::ZeroDuration();
  absl::Duration now_ = absl::ZeroDuration();
  int pauses_ = 0;
};

}  // namespace syncline
