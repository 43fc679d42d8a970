// Measures how long a peer has been silent: the time since the oldest unanswered
// heartbeat was sent. An answer to an older heartbeat does not restart the measurement.
// After a network cut one direction may recover while the other still waits for TCP, and
// answers that arrive then were sent before the cut.
//
// Pure; times come from the caller. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "absl/time/time.h"

namespace syncline {

class UnansweredBeats {
 public:
  // Records a heartbeat. Returns its number, from 1.
  uint64_t Sent(absl::Duration now) {
    sent_.push_back(now);
    return ++last_;
  }

  // Records an answer to this heartbeat and all earlier ones.
  void Answered(uint64_t beat) {
    while (!sent_.empty() && last_ - sent_.size() < beat) sent_.pop_front();
  }

  // Counts from now on, since the stream that carried the heartbeats was given up.
  void Restart(absl::Duration now) { std::fill(sent_.begin(), sent_.end(), now); }

  // Returns zero when all are answered.
  absl::Duration Silence(absl::Duration now) const {
    return sent_.empty() ? absl::ZeroDuration() : now - sent_.front();
  }

 private:
  uint64_t last_ = 0;
  // send times of the unanswered ones; the last has number last_
  std::deque<absl::Duration> sent_;
};

}  // namespace syncline
