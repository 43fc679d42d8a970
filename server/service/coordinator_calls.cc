// The single calls to the coordinator: status, changes of jobs, checkpoints, ends of
// servers.
#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/base/limits.h"
#include "comm/base/unknown_job.h"
#include "comm/rpc/status.h"
#include "server/service/coordinator_service.h"
#include "server/service/event_convert.h"
#include "server/service/proto_convert.h"

namespace syncline {
namespace {

// Returns who calls, if the gate admits them. Otherwise finishes the call with the refusal.
// A context has its reactor once, so the caller passes it on.
std::optional<Peer> Admitted(Gate& gate, grpc::CallbackServerContext& context,
                             grpc::ServerUnaryReactor& reactor, Action action,
                             const std::string& job) {
  absl::StatusOr<Peer> peer = gate.AdmitCall(context, action, job);
  if (peer.ok()) return *std::move(peer);
  reactor.Finish(ToGrpcStatus(peer.status()));
  return std::nullopt;
}

// Workers may see their own job only, and no servers.
void ShowOnly(const Identity& who, v1::StatusReply& reply) {
  if (who.role != Role::kWorker) return;
  reply.clear_servers();
  reply.clear_events();
  v1::StatusReply all;
  all.mutable_jobs()->Swap(reply.mutable_jobs());
  for (v1::JobStatus& job : *all.mutable_jobs()) {
    if (job.name() == who.job) *reply.add_jobs() = std::move(job);
  }
}

void Keep(const std::function<bool(const v1::Event&)>& is_kept, v1::EventsReply& reply) {
  v1::EventsReply all;
  all.Swap(&reply);
  for (v1::Event& event : *all.mutable_events()) {
    if (is_kept(event)) *reply.add_events() = std::move(event);
  }
}

void ShowOnly(const Identity& who, v1::EventsReply& reply) {
  if (who.role != Role::kWorker) return;
  Keep([&](const v1::Event& event) { return event.job_name() == who.job; }, reply);
}

// Keeps only the events of the last job of that name. An empty name keeps all events.
absl::Status ChooseJob(const std::string& name, v1::EventsReply& reply) {
  if (name.empty()) return absl::OkStatus();
  uint32_t last = 0;
  std::set<std::string> names;
  for (const v1::Event& event : reply.events()) {
    if (event.job_name() == name) last = std::max(last, event.job());
    if (event.job() != 0) names.insert(event.job_name());
  }
  if (last == 0) {
    const std::vector<std::string_view> known(names.begin(), names.end());
    return UnknownJob(name, known, JobSet::kKnown);
  }
  Keep([last](const v1::Event& event) { return event.job() == last; }, reply);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* CoordinatorService::Status(grpc::CallbackServerContext* context,
                                                     const v1::StatusRequest*,
                                                     v1::StatusReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Peer> peer = gate_->AdmitCall(*context, Action::kReadStatus, "");
  absl::Status status = peer.status();
  if (status.ok() && !StillLeads()) status = NotApplied().status;
  if (status.ok()) *reply = StatusNow();
  if (status.ok() && peer->identity) ShowOnly(*peer->identity, *reply);
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Events(grpc::CallbackServerContext* context,
                                                     const v1::EventsRequest* request,
                                                     v1::EventsReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Peer> peer = gate_->AdmitCall(*context, Action::kReadStatus, "");
  absl::Status status = peer.status();
  if (status.ok()) {
    *reply = EventsNow();
    if (peer->identity) ShowOnly(*peer->identity, *reply);
    status = ChooseJob(request->job(), *reply);
  }
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

v1::EventsReply CoordinatorService::EventsNow() const { return ToProto(events_.All()); }

grpc::ServerUnaryReactor* CoordinatorService::UpdateJob(
    grpc::CallbackServerContext* context, const v1::UpdateJobRequest* request,
    v1::UpdateJobReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::optional<Peer> peer =
      Admitted(*gate_, *context, *reactor, Action::kUpdateJob, request->job());
  if (!peer) return reactor;
  Item item = {.input = FromProto(*request)};
  item.answer = [=, this, who = *peer](const CallAnswer& answer,
                                       const std::string& change) {
    gate_->Updated(who, request->job(), answer, change);
    reply->set_epoch(answer.changed.epoch);
    for (const std::string& change : answer.changed.changes) reply->add_changes(change);
    reactor->Finish(ToGrpcStatus(answer.status));
  };
  PostCall(std::move(item));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::CreateCheckpoint(
    grpc::CallbackServerContext* context, const v1::CreateCheckpointRequest* request,
    v1::CreateCheckpointReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::optional<Peer> peer =
      Admitted(*gate_, *context, *reactor, Action::kUpdateJob, request->job());
  if (!peer) return reactor;
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
  const std::optional<Peer> peer =
      Admitted(*gate_, *context, *reactor, Action::kDrainServer, "");
  if (!peer) return reactor;
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

grpc::ServerUnaryReactor* CoordinatorService::ReportExit(
    grpc::CallbackServerContext* context, const v1::ReportExitRequest* request,
    v1::ReportExitReply*) {
  return TakeReport(context, request->job(),
                    WorkerExit{.job = request->job(),
                               .run_id = request->run_id(),
                               .rank = request->rank(),
                               .how = request->how(),
                               .then = request->then(),
                               .said = request->said()},
                    "");
}

grpc::ServerUnaryReactor* CoordinatorService::ReportStop(
    grpc::CallbackServerContext* context, const v1::ReportStopRequest* request,
    v1::ReportStopReply*) {
  return TakeReport(
      context, request->job(),
      LauncherStop{.job = request->job(),
                   .run_id = request->run_id(),
                   .ranks = {request->ranks().begin(), request->ranks().end()},
                   .why = request->why(),
                   .host = request->host()},
      absl::StrCat("a launcher at ", request->host(), " was stopped, with ",
                   request->ranks_size(), " ranks"));
}

grpc::ServerUnaryReactor* CoordinatorService::ReportPushes(
    grpc::CallbackServerContext* context, const v1::ReportPushesRequest* request,
    v1::ReportPushesReply*) {
  return TakeReport(context, request->job(),
                    TrainJobPushes{.job = request->job(),
                                   .run_id = request->run_id(),
                                   .sent = request->sent(),
                                   .failed = request->failed()},
                    "");
}

grpc::ServerUnaryReactor* CoordinatorService::TakeReport(
    grpc::CallbackServerContext* context, const std::string& job, CoordinatorInput report,
    const std::string& change) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::optional<Peer> peer =
      Admitted(*gate_, *context, *reactor, Action::kReportExit, job);
  if (!peer) return reactor;
  if (auto* const stop = std::get_if<LauncherStop>(&report)) {
    stop->of_this_job_alone = peer->identity && peer->identity->role == Role::kWorker;
  }
  Item item = {.input = std::move(report)};
  item.answer = [=, this, who = *peer](const CallAnswer& answer, const std::string&) {
    if (!change.empty()) gate_->Updated(who, job, answer, change);
    reactor->Finish(ToGrpcStatus(answer.status));
  };
  PostCall(std::move(item));
  return reactor;
}

void CoordinatorService::PostCall(Item item) {
  if (StillLeads()) {
    absl::MutexLock lock(&mutex_);
    if (!stopped_ && inbox_.size() < kMaxInboxItems) return Post(std::move(item));
  }
  item.answer(NotApplied(), "");
}

}  // namespace syncline
