// Default time for which members wait for a lost coordinator: long enough to start a new
// one on another host, even by hand.
#pragma once

#include "absl/time/time.h"

namespace syncline {

inline absl::Duration DefaultPatience(absl::Duration failure_timeout) {
  return 30 * failure_timeout;
}

}  // namespace syncline
