#include "server/service/standby_service.h"

#include "absl/strings/str_cat.h"
#include "comm/rpc/status.h"

namespace syncline {
namespace {

class RefusedMember final
    : public grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage> {
 public:
  explicit RefusedMember(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

absl::Status StandbyService::Refusal() const {
  const std::string leader = leader_();
  return absl::UnavailableError(
      absl::StrCat("this coordinator is a standby, not the leader; ",
                   leader.empty() ? "there is no leader now, try again"
                                  : absl::StrCat("ask ", leader)));
}

grpc::ServerUnaryReactor* StandbyService::Refuse(
    grpc::CallbackServerContext* context) const {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(Refusal()));
  return reactor;
}

grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>*
StandbyService::Attach(grpc::CallbackServerContext*) {
  return new RefusedMember(Refusal());
}

grpc::ServerUnaryReactor* StandbyService::Status(grpc::CallbackServerContext* context,
                                                 const v1::StatusRequest*,
                                                 v1::StatusReply*) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StandbyService::Events(grpc::CallbackServerContext* context,
                                                 const v1::EventsRequest*,
                                                 v1::EventsReply*) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StandbyService::UpdateJob(grpc::CallbackServerContext* context,
                                                    const v1::UpdateJobRequest*,
                                                    v1::UpdateJobReply*) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StandbyService::CreateCheckpoint(
    grpc::CallbackServerContext* context, const v1::CreateCheckpointRequest*,
    v1::CreateCheckpointReply*) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StandbyService::ReportExit(grpc::CallbackServerContext* context,
                                                     const v1::ReportExitRequest*,
                                                     v1::ReportExitReply*) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StandbyService::ReportStop(grpc::CallbackServerContext* context,
                                                     const v1::ReportStopRequest*,
                                                     v1::ReportStopReply*) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StandbyService::ReportPushes(
    grpc::CallbackServerContext* context, const v1::ReportPushesRequest*,
    v1::ReportPushesReply*) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StandbyService::DrainServer(
    grpc::CallbackServerContext* context, const v1::DrainServerRequest*,
    v1::DrainServerReply*) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StandbyService::StartTrace(grpc::CallbackServerContext* context,
                                                     const v1::StartTraceRequest*,
                                                     v1::StartTraceReply*) {
  return Refuse(context);
}

grpc::ServerUnaryReactor* StandbyService::FetchTrace(grpc::CallbackServerContext* context,
                                                     const v1::FetchTraceRequest*,
                                                     v1::FetchTraceReply*) {
  return Refuse(context);
}

}  // namespace syncline
