// One timeout is configured, `--failure-timeout`: how long a job may stand still because
// somebody died. All other times derive from it here, so that they cannot contradict each
// other.
//
//   SYNCLINE_RETURN_IF_ERROR(Timeouts::Validate(failure_timeout));
//   const Timeouts timeouts = Timeouts::Derive(failure_timeout);
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncline {

struct Timeouts {
  // F, as configured: from the death of a member until the others go on.
  absl::Duration failure_timeout;

  // F/10. A member reports itself and its progress so often.
  absl::Duration heartbeat_interval;

  // 0.4 F. A control link that is cut for so long, or a coordinator or member that stands
  // still for so long, ends nobody.
  absl::Duration tolerated_cut;

  // 0.6 F. Whoever was silent for so long is dropped: a cut may begin just before a
  // heartbeat, and after it the member needs a slot or two to get through. The rest of F
  // is left for making the new epoch known and for repeating what was under way.
  absl::Duration lease;

  // 0.65 F. A coordinator that answers no heartbeat for so long is lost: later than it
  // drops the silent, so that nobody gives up before the coordinator does.
  absl::Duration coordinator_silence;

  // 0.2 F. A heartbeat without an answer for so long: the member dials a new stream.
  absl::Duration redial_after;

  // F/20. One attempt to reach the coordinator again, the first few times.
  absl::Duration dial_slot;

  // F/4. A member whose stream broke may come back for so long. The same time is given to
  // a new stream for saying hello.
  absl::Duration reconnect_grace;

  // 2 F. A member that lives is back at a coordinator that was started anew within it.
  absl::Duration time_to_return;

  // F/4. One attempt to connect; two attempts fit into a lease.
  absl::Duration connect_timeout;

  // F/2. A shard owes an answer, and no byte moved on its connection for so long: the
  // connection is dead, and made again. Longer than a cut that is tolerated.
  absl::Duration link_silence;

  // 5 F. A member that beats without progress for so long while others wait for it is
  // hung. Far above F: a worker that loads data or writes a checkpoint is slow, not hung.
  absl::Duration no_progress;

  // F/2. A control call fails after that; waiting longer than a lease is waiting for the
  // dead.
  absl::Duration control_deadline;

  // F/4, at most 1 s: people and job controllers wait for it. Time to finish and say
  // goodbye.
  absl::Duration shutdown_grace;

  // InvalidArgument unless 500 ms <= failure_timeout <= 1 h.
  static absl::Status Validate(absl::Duration failure_timeout);

  // REQUIRES: Validate(failure_timeout).ok()
  static Timeouts Derive(absl::Duration failure_timeout);
};

inline constexpr absl::Duration kDefaultFailureTimeout = absl::Seconds(10);

}  // namespace syncline
