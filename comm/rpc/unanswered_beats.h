// Heartbeats that were sent and not answered yet, and so how long the peer has been
// silent: since the oldest of them was sent. An answer to an older one does not begin the
// time anew: after a cut, one direction may come back while the other still waits for
// TCP, and what arrives then was said before the cut.
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
  // Another one is sent; its number, from 1.
  uint64_t Sent(absl::Duration now) {
    sent_.push_back(now);
    return ++last_;
  }

  // This one and all before it.
  void Answered(uint64_t beat) {
    while (!sent_.empty() && last_ - sent_.size() < beat) sent_.pop_front();
  }

  // The stream on which they were sent is given up: answers are due from now on.
  void Restart(absl::Duration now) { std::fill(sent_.begin(), sent_.end(), now); }

  // Zero when all are answered.
  absl::Duration Silence(absl::Duration now) const {
    return sent_.empty() ? absl::ZeroDuration() : now - sent_.front();
  }

 private:
  uint64_t last_ = 0;
  std::deque<absl::Duration> sent_;  // the last ones up to last_
};

}  // namespace syncline
