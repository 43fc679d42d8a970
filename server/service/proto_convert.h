// Between the messages of proto/coordinator.proto and the structs of the state machines,
// both ways.
//
// Reading checks what the wire cannot express (enumerations, required bodies); what a
// value may be is the state machines' business.
#pragma once

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator.h"
#include "server/service/job_convert.h"

namespace syncline {

// What a member says. InvalidArgument for an empty message. A hello's protocol version is
// not looked at.
absl::StatusOr<MemberBody> FromProto(const v1::MemberMessage& message);
// REQUIRES: neither Disconnected nor Returned, which nobody can say.
v1::MemberMessage ToProto(const MemberBody& body);

// What the coordinator says.
absl::StatusOr<CoordinatorBody> FromProto(const v1::CoordinatorMessage& message);
v1::CoordinatorMessage ToProto(const CoordinatorBody& body, SharedBytes& shared);

}  // namespace syncline
