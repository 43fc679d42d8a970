// What the coordinator answers to single calls: status, changes of jobs, checkpoints,
// servers that are to end.
#include <utility>

#include "comm/rpc/status.h"
#include "server/service/coordinator_service.h"
#include "server/service/proto_convert.h"

namespace syncline {
namespace {

// Workers see their own job, and no servers.
void ShowOnly(const Identity& who, v1::StatusReply& reply) {
  if (who.role != Role::kWorker) return;
  reply.clear_servers();
  v1::StatusReply all;
  all.mutable_jobs()->Swap(reply.mutable_jobs());
  for (v1::JobStatus& job : *all.mutable_jobs()) {
    if (job.name() == who.job) *reply.add_jobs() = std::move(job);
  }
}

}  // namespace

grpc::ServerUnaryReactor* CoordinatorService::Status(grpc::CallbackServerContext* context,
                                                     const v1::StatusRequest*,
                                                     v1::StatusReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Peer> peer = gate_->AdmitCall(*context, Action::kReadStatus, "");
  if (peer.ok()) *reply = StatusNow();
  if (peer.ok() && peer->identity) ShowOnly(*peer->identity, *reply);
  reactor->Finish(ToGrpcStatus(peer.status()));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::UpdateJob(
    grpc::CallbackServerContext* context, const v1::UpdateJobRequest* request,
    v1::UpdateJobReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Peer> peer =
      gate_->AdmitCall(*context, Action::kUpdateJob, request->job());
  if (!peer.ok()) {
    reactor->Finish(ToGrpcStatus(peer.status()));
    return reactor;
  }
  Item item = {.input = FromProto(*request)};
  item.answer = [=, this, who = *peer](const CallAnswer& answer,
                                       const std::string& change) {
    gate_->Updated(who, request->job(), answer, change);
    reply->set_epoch(answer.epoch);
    reactor->Finish(ToGrpcStatus(answer.status));
  };
  PostCall(std::move(item));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::CreateCheckpoint(
    grpc::CallbackServerContext* context, const v1::CreateCheckpointRequest* request,
    v1::CreateCheckpointReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Peer> peer =
      gate_->AdmitCall(*context, Action::kUpdateJob, request->job());
  if (!peer.ok()) {
    reactor->Finish(ToGrpcStatus(peer.status()));
    return reactor;
  }
  Item item = {.input = syncline::CreateCheckpoint{request->job()}};
  item.answer = [=, this, who = *peer](const CallAnswer& answer, const std::string&) {
    gate_->Updated(who, request->job(), answer, "a checkpoint, now");
    reply->set_finished(answer.finished_checkpoints);
    reactor->Finish(ToGrpcStatus(answer.status));
  };
  PostCall(std::move(item));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::DrainServer(
    grpc::CallbackServerContext* context, const v1::DrainServerRequest* request,
    v1::DrainServerReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Peer> peer = gate_->AdmitCall(*context, Action::kDrainServer, "");
  if (!peer.ok()) {
    reactor->Finish(ToGrpcStatus(peer.status()));
    return reactor;
  }
  Item item = {.input = syncline::DrainServer{request->server(), request->force()}};
  item.answer = [=, this, who = *peer](const CallAnswer& answer, const std::string&) {
    gate_->Drained(who, request->server(), request->force(), answer);
    reply->set_server(answer.server);
    reply->set_name(answer.server_name);
    reply->set_return_seconds(
        absl::ToDoubleSeconds(options_.coordinator.timeouts.time_to_return));
    reactor->Finish(ToGrpcStatus(answer.status));
  };
  PostCall(std::move(item));
  return reactor;
}

void CoordinatorService::PostCall(Item item) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stopped_ && inbox_.size() < kMaxInboxItems) return Post(std::move(item));
  }
  item.answer(NotApplied(), "");
}

}  // namespace syncline
