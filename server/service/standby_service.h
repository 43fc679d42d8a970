// The service of a coordinator that waits to become the leader. It fails every call at
// once, and names the leader.
//
//   StandbyService standby([&] { return leadership.leader(); });
//   StartServer({.services = {&standby}});
//
// Members treat this as a broken stream, and dial the next address that they were given
// (comm/rpc/control_link.h).
//
// Thread safety: `leader` is called from any thread.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {

class StandbyService final : public v1::Coordinator::CallbackService {
 public:
  // Returns the address of the leader; empty: there is none now.
  explicit StandbyService(std::function<std::string()> leader)
      : leader_(std::move(leader)) {}

  grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const v1::StatusRequest* request,
                                   v1::StatusReply* reply) override;
  grpc::ServerUnaryReactor* Events(grpc::CallbackServerContext* context,
                                   const v1::EventsRequest* request,
                                   v1::EventsReply* reply) override;
  grpc::ServerUnaryReactor* UpdateJob(grpc::CallbackServerContext* context,
                                      const v1::UpdateJobRequest* request,
                                      v1::UpdateJobReply* reply) override;
  grpc::ServerUnaryReactor* CreateCheckpoint(grpc::CallbackServerContext* context,
                                             const v1::CreateCheckpointRequest* request,
                                             v1::CreateCheckpointReply* reply) override;
  grpc::ServerUnaryReactor* ReportExit(grpc::CallbackServerContext* context,
                                       const v1::ReportExitRequest* request,
                                       v1::ReportExitReply* reply) override;
  grpc::ServerUnaryReactor* ReportStop(grpc::CallbackServerContext* context,
                                       const v1::ReportStopRequest* request,
                                       v1::ReportStopReply* reply) override;
  grpc::ServerUnaryReactor* ReportPushes(grpc::CallbackServerContext* context,
                                         const v1::ReportPushesRequest* request,
                                         v1::ReportPushesReply* reply) override;
  grpc::ServerUnaryReactor* DrainServer(grpc::CallbackServerContext* context,
                                        const v1::DrainServerRequest* request,
                                        v1::DrainServerReply* reply) override;
  grpc::ServerUnaryReactor* StartTrace(grpc::CallbackServerContext* context,
                                       const v1::StartTraceRequest* request,
                                       v1::StartTraceReply* reply) override;
  grpc::ServerUnaryReactor* FetchTrace(grpc::CallbackServerContext* context,
                                       const v1::FetchTraceRequest* request,
                                       v1::FetchTraceReply* reply) override;

  // Returns the error with which calls fail: Unavailable, without a Failure.
  absl::Status Refusal() const;

 private:
  grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context) const;

  const std::function<std::string()> leader_;
};

}  // namespace syncline
