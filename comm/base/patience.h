// How long members wait for a coordinator that is away, unless they are told otherwise:
// long enough for a new one to be started on another host, by hand if need be.
#pragma once

#include "absl/time/time.h"

namespace syncline {

inline absl::Duration DefaultPatience(absl::Duration failure_timeout) {
  return 30 * failure_timeout;
}

}  // namespace syncline
