// The coordinator's status as JSON, as `syncline status --json` prints it and the admin
// port serves it at /status.
//
//   {"build_version": "0.1.0", "uptime_seconds": 12.5, "failure_timeout_seconds": 10,
//    "servers": [{"server": 0, "name": "host:17", "incarnation": 1, "shards": 1,
//                 "lanes": "sysv",
//                 "heartbeat_age_seconds": 0.2, "bytes": 1048576}],
//    "jobs": [{"job": 1, "name": "default", "phase": "running", "reason": "",
//              "epoch": 3, "step": 7,
//              "parameters": 1000, "expected_workers": 1,
//              "learning_rate": 0.001, "loss_scale": 65536, "skipped_steps": 2,
//              "members": [{"rank": 0, "incarnation": 1, "name": "host:19",
//                           "step": 7, "bytes": 4096,
//                           "waiting": false, "heartbeat_age_seconds": 0.1,
//                           "phases": {"steps": 7, "seconds": {"compute": 0.5, ...}}}],
//              "server_phases": [{"server": 0, "steps": 7,
//                                 "seconds": {"hold": 0.1, ...}}]}]}
//
// A server whose connection broke also has "lost_seconds": the time since then. The same
// holds for a server that has not returned yet to a restarted coordinator. A server that
// "drains" will end, and receives nothing new.
//
// Phases (comm/base/step_phases.h) are sums so far. The difference of two statuses gives
// the time that recent steps took.
//
// All numbers are JSON numbers; protobuf's own JSON writes 64-bit numbers as strings.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/rpc/tls.h"

namespace syncline {

namespace v1 {
class StatusReply;
}

std::string StatusAsJson(const v1::StatusReply& reply);

// Fetches the status from the coordinator at `address`. Fails with Failure::kUnreachable
// if it does not answer within `timeout`.
absl::StatusOr<std::string> FetchStatusJson(const std::string& address,
                                            const TlsOptions& tls,
                                            absl::Duration timeout);

// Does the same, but returns nothing if the coordinator does not answer. For callers that
// do not need the cause, since finding it takes additional time.
std::optional<std::string> StatusJsonIfAnswered(const std::string& address,
                                                const TlsOptions& tls,
                                                absl::Duration timeout);

}  // namespace syncline
