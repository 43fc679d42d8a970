#include "comm/base/timeouts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

// With a shorter timeout, heartbeats every 50 ms could be late on a busy host, and living
// members would be dropped.
constexpr absl::Duration kShortest = absl::Milliseconds(500);
// A longer timeout is probably a mistyped unit: no user wants a job to stand still for
// hours.
constexpr absl::Duration kLongest = absl::Hours(1);

}  // namespace

absl::Status Timeouts::Validate(absl::Duration failure_timeout) {
  if (failure_timeout >= kShortest && failure_timeout <= kLongest)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("failure timeout ", absl::FormatDuration(failure_timeout),
                   " is out of range: give ", absl::FormatDuration(kShortest), " to ",
                   absl::FormatDuration(kLongest), " (the default is ",
                   absl::FormatDuration(kDefaultFailureTimeout), ")"));
}

Timeouts Timeouts::Derive(absl::Duration failure_timeout) {
  SYNCLINE_CHECK(Validate(failure_timeout).ok());
  Timeouts timeouts;
  timeouts.failure_timeout = failure_timeout;
  timeouts.heartbeat_interval = failure_timeout / 10;
  timeouts.tolerated_cut = 0.4 * failure_timeout;
  timeouts.lease = 0.6 * failure_timeout;
  timeouts.coordinator_silence = 0.65 * failure_timeout;
  timeouts.redial_after = failure_timeout / 5;
  timeouts.dial_slot = failure_timeout / 20;
  timeouts.reconnect_grace = failure_timeout / 4;
  timeouts.time_to_return = failure_timeout * 2;
  timeouts.connect_timeout = failure_timeout / 4;
  timeouts.link_silence = failure_timeout / 2;
  timeouts.no_progress = failure_timeout * 5;
  timeouts.control_deadline = failure_timeout / 2;
  timeouts.shutdown_grace = std::min(failure_timeout / 4, absl::Seconds(1));
  return timeouts;
}

}  // namespace syncline
