// Calls of the coordinator by commands, one after the other on one connection.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const CoordinatorCaller coordinator,
//                             CoordinatorCaller::Connect("10.0.0.1:7070", tls, timeout));
//   SYNCLINE_ASSIGN_OR_RETURN(
//       const v1::DrainServerReply reply,
//       coordinator.Call(&v1::Coordinator::Stub::DrainServer, request, timeout));
//
// Thread safety: as a grpc::Channel, which any thread may use.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/status.h"
#include "comm/rpc/tls.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {

class CoordinatorCaller {
 public:
  // Fails as CreateChannel does, and after `timeout` as WaitUntilConnected does.
  static absl::StatusOr<CoordinatorCaller> Connect(const std::string& address,
                                                   const TlsOptions& tls,
                                                   absl::Duration timeout);
  explicit CoordinatorCaller(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Coordinator::NewStub(channel)) {}

  // A method of the stub that takes one message and answers with one.
  template <typename Request, typename Reply>
  using Method = grpc::Status (v1::Coordinator::Stub::*)(grpc::ClientContext*,
                                                         const Request&, Reply*);

  // Returns the reply, or the coordinator's error (status.h).
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Method<Request, Reply> method, const Request& request,
                             absl::Duration timeout) const {
    grpc::ClientContext context;
    SetDeadline(context, timeout);
    Reply reply;
    const absl::Status called =
        FromGrpcStatus((stub_.get()->*method)(&context, request, &reply));
    if (!called.ok()) return called;
    return reply;
  }

 private:
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

}  // namespace syncline
