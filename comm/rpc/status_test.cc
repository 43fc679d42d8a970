#include "comm/rpc/status.h"

#include "absl/status/status.h"
#include "comm/base/failure.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(RpcStatus, KeepsEveryCodeAndMessage) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code),
                              code == 0 ? "" : "why; fix");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status) << code;
  }
}

TEST(RpcStatus, CarriesTheFailureAcross) {
  const absl::Status refused =
      WithFailure(absl::AlreadyExistsError("job 'a' runs already"), Failure::kJobRefused);
  EXPECT_EQ(FailureOf(FromGrpcStatus(ToGrpcStatus(refused))), Failure::kJobRefused);
}

TEST(RpcStatus, IgnoresForeignDetails) {
  const grpc::Status foreign(grpc::StatusCode::INTERNAL, "x", "\xff\xff no protobuf");
  EXPECT_EQ(FromGrpcStatus(foreign), absl::InternalError("x"));
}

}  // namespace
}  // namespace syncline
