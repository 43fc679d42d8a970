// A clock that stands still while its own process did not run.
//
// Whoever judges others by their silence must not count a time in which it could not have
// heard them: after SIGSTOP, a slow disk under a lock, or a host that stole the processor,
// everybody seems to have been silent. The owner asks often (`planned` says how often at
// the latest). A longer gap counts as `planned` only, and for `settle` after it the clock
// stands still, so that what arrived meanwhile is heard before anyone is judged.
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
    absl::Duration planned;      // between two calls of Advance, at the latest
    absl::Duration longest_gap;  // longer ones are pauses; >= planned
    absl::Duration settle;       // stands still for so long after a pause
  };

  explicit PatientClock(const Options& options) : options_(options) {}

  // The patient time at `steady`, which never goes back. Neither does the answer.
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
