// What became of runs: the end of each job that is over, and what happened to the last one
// of its name. It comes from the events that are kept, which outlive the coordinator; its
// jobs do not.
#pragma once

#include <vector>

#include "proto/coordinator.pb.h"
#include "server/service/event_log.h"

namespace syncline {

// To the jobs that `reply` has, each its own end and that of the last one of its name
// before it; and the last jobs that had ended when this life of the coordinator began, of
// names that `reply` does not have: those of an hour, 16 at most.
void AppendEnds(const std::vector<JobEnd>& ends, v1::StatusReply& reply);

}  // namespace syncline
