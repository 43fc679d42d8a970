// Converts messages about checkpoints to and from the structs of the coordinator.
//
// Thread safety: pure functions.
#pragma once

#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

void ToProto(const CheckpointWritten& written, v1::CheckpointWritten& out);
CheckpointWritten FromProto(const v1::CheckpointWritten& in);
void ToProto(const CheckpointView& view, v1::CheckpointStatus& out);

}  // namespace syncline
