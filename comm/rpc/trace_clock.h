// How a member's recorder and the coordinator tell the time, for traces: whoever merges
// spans of several members needs to know (docs/traces.md).
#pragma once

#include "comm/base/trace_recorder.h"
#include "comm/rpc/control_link.h"
#include "proto/coordinator.pb.h"

namespace syncline {

// Without an answer of the coordinator so far the part says nothing of its clock.
void WriteClock(const ControlLink& link, const TraceRecorder& recorder,
                v1::TracePart& part);

}  // namespace syncline
