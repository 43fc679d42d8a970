// Converts events to protocol messages.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "proto/coordinator.pb.h"
#include "server/service/event_log.h"

namespace syncline {

v1::EventsReply ToProto(const std::vector<LoggedEvent>& events);

// Adds events to the jobs that `reply` has. Events of no job go to `reply` itself.
void AppendEvents(const std::map<uint32_t, std::vector<LoggedEvent>>& events,
                  v1::StatusReply& reply);

}  // namespace syncline
