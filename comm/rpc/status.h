// Carries absl::Status over gRPC. Code and message map one to one. Payloads
// (comm/base/failure.h) become the details of a google.rpc.Status, which other gRPC tools
// can read.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace syncline {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace syncline
