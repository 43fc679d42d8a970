// The coordinator's status as JSON: what `syncline status --json` prints and the admin
// port serves as /status, in one form.
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
//              "server_phases": [{"server": 0, "steps": 7, "seconds": {"hold": 0.1, ...}}]}]}
//
// A server whose connection broke has "lost_seconds", too: since when. So has one that is not
// back yet at a coordinator that was started anew. One that "drains" is to end, and gets
// nothing new.
//
// Phases (comm/base/step_phases.h) are sums so far: differences of two statuses say what a
// step of late took.
//
// Numbers are numbers; protobuf's own JSON writes 64-bit ones as strings.
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

// Asks the coordinator at `address`. Failure::kUnreachable when it does not answer within
// `timeout`.
absl::StatusOr<std::string> FetchStatusJson(const std::string& address,
                                            const TlsOptions& tls,
                                            absl::Duration timeout);

// Nothing when it does not answer, for callers that do not ask why: to find that out takes
// a while of its own.
std::optional<std::string> StatusJsonIfAnswered(const std::string& address,
                                                const TlsOptions& tls,
                                                absl::Duration timeout);

}  // namespace syncline
