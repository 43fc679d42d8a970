// The coordinator's events as JSON. `syncline events --json` prints one event per line;
// the admin port serves {"events": [...]} as /events.
//
//   {"job": 1, "job_name": "bert", "number": 7, "time": 1763990000.5, "kind": "death",
//    "step": 120, "what": "worker 3 (host:19) was dropped: no heartbeat for 6s"}
//
// Events of servers and of the coordinator have job 0 and no name. `number` counts the
// events of a job from 1. `step` is the highest that a member had reported. Events with a
// duration (a recovery, a checkpoint, the end of a stall) also have "seconds".
// docs/status.schema.json lists the kinds.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/rpc/tls.h"
#include "nlohmann/json_fwd.hpp"

namespace syncline {

namespace v1 {
class Event;
class EventsReply;
}  // namespace v1

nlohmann::ordered_json EventToJson(const v1::Event& event);
std::string EventAsJson(const v1::Event& event);  // without a line break
std::string EventsAsJson(const v1::EventsReply& reply);

// Asks the coordinator at `address` for the events of the last job named `job`; of all
// jobs if it is empty. Fails with Failure::kUnreachable when it does not answer within
// `timeout`.
absl::StatusOr<v1::EventsReply> FetchEvents(const std::string& address,
                                            const TlsOptions& tls, const std::string& job,
                                            absl::Duration timeout);

}  // namespace syncline
