// Whether a member that says hello may be listened to at all: it speaks our protocol, with
// our failure timeout, and its certificate has the role for what it wants to be.
#pragma once

#include "absl/status/status.h"
#include "comm/base/timeouts.h"
#include "comm/rpc/trust.h"
#include "proto/coordinator.pb.h"

namespace syncline {

// Ok for messages that are no hello. Errors carry a Failure and say what to do.
absl::Status CheckHello(const v1::MemberMessage& message, const Peer& peer,
                        const Timeouts& timeouts);

}  // namespace syncline
