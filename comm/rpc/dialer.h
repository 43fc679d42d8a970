// How often, and for how long each time, a member tries to reach the coordinator again.
//
// Each attempt has a slot: it may take so long, and the next one does not begin sooner.
// The first slots are short, because a new connection gets through a link that has just
// healed at once, while one whose first packet was lost waits for a second. Later ones
// grow, for hosts on which everything takes long. Slots are jittered, so that a thousand
// members do not come at the same moment.
//
//   Dialer dialer({.first = absl::Milliseconds(200), .longest = absl::Seconds(1)}, seed);
//   for (;;) Try(dialer.NextSlot());
//   dialer.Reset();  // it got through
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
  int first_slots = 6;  // before they grow
};

class Dialer {
 public:
  Dialer(const DialerOptions& options, uint64_t seed)
      : options_(options), random_(seed) {}

  absl::Duration NextSlot();
  void Reset() { attempts_ = 0; }
  int attempts() const { return attempts_; }  // since it last got through

 private:
  const DialerOptions options_;
  std::mt19937_64 random_;
  int attempts_ = 0;
};

}  // namespace syncline
