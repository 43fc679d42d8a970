// Derives gRPC's timeouts from the one failure timeout that a user configures
// (comm/base/timeouts.h).
//
// Keepalive only detects hosts and links that are gone. A process that hangs still
// answers pings through its kernel and gRPC's threads; heartbeats with progress detect
// that.
#pragma once

#include "absl/time/time.h"
#include "comm/base/timeouts.h"

namespace syncline {

struct RpcTimeouts {
  absl::Duration keepalive_interval;  // time between pings
  // a connection without an answer for this long is dead
  absl::Duration keepalive_timeout;
  absl::Duration call;  // deadline of a unary call

  // Connections survive every network cut that is too short to end a member. The control
  // link judges silence (comm/rpc/control_link.h); keepalive only frees what was left
  // behind. gRPC also uses its timeout as TCP_USER_TIMEOUT, for unacknowledged data.
  // `call` is for SetDeadline.
  static RpcTimeouts From(const Timeouts& timeouts) {
    return {timeouts.connect_timeout, timeouts.failure_timeout,
            timeouts.control_deadline};
  }

  static RpcTimeouts Default() { return From(Timeouts::Derive(kDefaultFailureTimeout)); }
};

}  // namespace syncline
