// All time limits derive from one setting, `--failure-timeout`: how long a job may stand
// still because a member died. Deriving them here keeps them consistent.
//
//   SYNCLINE_RETURN_IF_ERROR(Timeouts::Validate(failure_timeout));
//   const Timeouts timeouts = Timeouts::Derive(failure_timeout);
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncline {

struct Timeouts {
  // F, as configured: from the death of a member until the others continue.
  absl::Duration failure_timeout;

  // F/10. Interval at which a member reports itself and its progress.
  absl::Duration heartbeat_interval;

  // 0.4 F. A control link that is cut for this long, or a coordinator or member that
  // stands still for this long, ends no member.
  absl::Duration tolerated_cut;

  // 0.6 F. A member that was silent for this long is dropped. A cut may begin just before
  // a heartbeat, and after it the member needs one or two dial slots. The rest of F is
  // for announcing the new epoch and for repeating operations in progress.
  absl::Duration lease;

  // 0.65 F. A coordinator that answers no heartbeat for this long is lost. Longer than
  // `lease`, so that no member gives up before the coordinator drops it.
  absl::Duration coordinator_silence;

  // 0.2 F. After a heartbeat is unanswered for this long, the member dials a new stream.
  absl::Duration redial_after;

  // F/20. Length of the first few attempts to reach the coordinator again.
  absl::Duration dial_slot;

  // F/4. A member whose stream broke may come back for this long. A new stream has the
  // same time to say hello.
  absl::Duration reconnect_grace;

  // 2 F. Within this time a living member returns to a restarted coordinator.
  absl::Duration time_to_return;

  // F/4. Limit of one attempt to connect; two attempts fit into a lease.
  absl::Duration connect_timeout;

  // F/2. If a shard owes an answer and no byte moved on its connection for this long, the
  // connection is dead and is replaced. Longer than a tolerated cut.
  absl::Duration link_silence;

  // 5 F. A member that sends heartbeats without progress for this long, while others wait
  // for it, is hung. Far above F: a worker that loads data or writes a checkpoint is
  // slow, not hung.
  absl::Duration no_progress;

  // F/2. Deadline of a control call. Waiting longer than a lease would be waiting for a
  // dead member.
  absl::Duration control_deadline;

  // F/4, at most 1 s, since people and job controllers wait for it. Time to finish and
  // say goodbye.
  absl::Duration shutdown_grace;

  // Fails with InvalidArgument unless 500 ms <= failure_timeout <= 1 h.
  static absl::Status Validate(absl::Duration failure_timeout);

  // REQUIRES: Validate(failure_timeout).ok()
  static Timeouts Derive(absl::Duration failure_timeout);
};

inline constexpr absl::Duration kDefaultFailureTimeout = absl::Seconds(10);

}  // namespace syncline
