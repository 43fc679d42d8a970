// Converts the messages of proto/coordinator.proto to the structs of the state machines,
// and back.
//
// Reading checks only what the wire cannot express (enumerations, required bodies). The
// state machines check the values.
#pragma once

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator.h"
#include "server/service/job_convert.h"

namespace syncline {

// Reads a message of a member. Fails with InvalidArgument if it is empty. The protocol
// version in a hello is not checked.
absl::StatusOr<MemberBody> FromProto(const v1::MemberMessage& message);
// REQUIRES: the body is neither Disconnected nor Returned, which are never sent.
v1::MemberMessage ToProto(const MemberBody& body);

// Reads a message of the coordinator.
absl::StatusOr<CoordinatorBody> FromProto(const v1::CoordinatorMessage& message);
v1::CoordinatorMessage ToProto(const CoordinatorBody& body, SharedBytes& shared);

}  // namespace syncline
