// Schedules a member's attempts to reach the coordinator again.
//
// Each attempt has a slot: its time limit, and the earliest time of the next attempt. The
// first slots are short: over a link that has just recovered a new connection succeeds at
// once, while one whose first packet was lost waits for a second. Later slots grow, for
// slow hosts. Slots are jittered, so that a thousand members do not connect at the same
// moment.
//
//   Dialer dialer({.first = absl::Milliseconds(200), .longest = absl::Seconds(1)}, seed);
//   for (;;) Try(dialer.NextSlot());
//   dialer.Reset();  // after an attempt succeeded
//
// Pure: randomness comes from the seed. Not thread-safe.
#pragma once

#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace syncline {

struct DialerOptions {
  absl::Duration first;
  absl::Duration longest;
  int first_slots = 6;  // short ones, before they grow
};

class Dialer {
 public:
  Dialer(const DialerOptions& options, uint64_t seed)
      : options_(options), random_(seed) {}

  absl::Duration NextSlot();
  void Reset() { attempts_ = 0; }
  int attempts() const { return attempts_; }  // since the last success

 private:
  const DialerOptions options_;
  std::mt19937_64 random_;
  int attempts_ = 0;
};

}  // namespace syncline
