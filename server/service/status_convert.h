// Converts the coordinator's view to the reply that `syncline status` gets.
#pragma once

#include "proto/coordinator.pb.h"
#include "server/coordinator/views.h"

namespace syncline {

v1::StatusReply ToProto(const CoordinatorView& view);

}  // namespace syncline
