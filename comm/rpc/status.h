// absl::Status over gRPC. Code and message map one to one; payloads (comm/base/failure.h)
// travel as the details of a google.rpc.Status, so that other gRPC tools can still read
// them.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace syncline {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace syncline
