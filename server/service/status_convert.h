// The coordinator's views as what `syncline status` is answered.
#pragma once

#include "proto/coordinator.pb.h"
#include "server/coordinator/views.h"

namespace syncline {

v1::StatusReply ToProto(const CoordinatorView& view);

}  // namespace syncline
