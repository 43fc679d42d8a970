// The gRPC times that follow from the one timeout a user configures
// (comm/base/timeouts.h).
//
// Keepalive only finds hosts and links that are gone: a process that hangs still answers
// pings through its kernel and its gRPC threads, so heartbeats with progress decide about
// those.
#pragma once

#include "absl/time/time.h"
#include "comm/base/timeouts.h"

namespace syncline {

struct RpcTimeouts {
  absl::Duration keepalive_interval;  // a ping so often
  absl::Duration keepalive_timeout;   // no answer for so long: the connection is dead
  absl::Duration call;                // deadline of a unary call

  // A connection lives through every cut that ends nobody: silence is for links to judge
  // (comm/rpc/control_link.h), keepalive only frees what was left behind. gRPC makes its
  // timeout the kernel's too, for data that nobody acknowledges (TCP_USER_TIMEOUT).
  // `call` is for a caller's SetDeadline.
  static RpcTimeouts From(const Timeouts& timeouts) {
    return {timeouts.connect_timeout, timeouts.failure_timeout,
            timeouts.control_deadline};
  }

  static RpcTimeouts Default() { return From(Timeouts::Derive(kDefaultFailureTimeout)); }
};

}  // namespace syncline
