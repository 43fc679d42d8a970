// Tells how runs have ended: each job that is over, and the job of the same name before
// it. This comes from the stored events, which outlive the coordinator; its jobs do not.
#pragma once

#include <vector>

#include "proto/coordinator.pb.h"
#include "server/service/event_log.h"

namespace syncline {

// Adds to each job in `reply` its own end, and the end of the job of the same name before
// it. Also adds ended jobs whose names `reply` lacks: the last one of each name, if it
// ended within the last hour, and at most 16.
void AppendEnds(const std::vector<JobEnd>& ends, v1::StatusReply& reply);

}  // namespace syncline
