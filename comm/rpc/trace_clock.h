// Records a member's clock and the coordinator's in a trace. Merging the spans of several
// members needs both (docs/traces.md).
#pragma once

#include "comm/base/trace_recorder.h"
#include "comm/rpc/control_link.h"
#include "proto/coordinator.pb.h"

namespace syncline {

// Writes both clocks into `part`. Omits the coordinator's clock if the coordinator has
// not answered yet.
void WriteClock(const ControlLink& link, const TraceRecorder& recorder,
                v1::TracePart& part);

}  // namespace syncline
