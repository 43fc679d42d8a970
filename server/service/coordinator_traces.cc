// Traces of jobs: the calls, and the data that members send.
#include <random>
#include <utility>

#include "comm/rpc/status.h"
#include "server/service/coordinator_service.h"

namespace syncline {

namespace {

void NameTensors(const JobSpec& spec, v1::StartTraceReply& reply) {
  for (const auto& tensor : spec.tensors) reply.add_tensors()->set_name(tensor.name);
  for (const BlockRange& range : spec.Blocks()) {
    v1::TraceTensor& tensor = *reply.mutable_tensors(static_cast<int>(range.tensor));
    tensor.set_blocks(tensor.blocks() + 1);
  }
}

}  // namespace

grpc::ServerUnaryReactor* CoordinatorService::StartTrace(
    grpc::CallbackServerContext* context, const v1::StartTraceRequest* request,
    v1::StartTraceReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status =
      gate_->AdmitCall(*context, Action::kTraceJob, request->job()).status();
  if (status.ok()) {
    absl::StatusOr<TraceTargets> targets = TargetsOf(request->job());
    status = targets.status();
    std::random_device random;
    const uint64_t id = (uint64_t{random()} << 32 | random()) | 1;
    if (status.ok()) {
      absl::MutexLock lock(&mutex_);
      TraceDesk::Orders orders;
      reply->set_trace(id);
      status = traces_.Begin(id, *request, *targets, clock_.Now(), orders);
      SendOrders(orders);
    }
    if (status.ok() && targets->declared) NameTensors(targets->declared->spec, *reply);
  }
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::FetchTrace(
    grpc::CallbackServerContext* context, const v1::FetchTraceRequest* request,
    v1::FetchTraceReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status =
      gate_->AdmitCall(*context, Action::kTraceJob, request->job()).status();
  if (status.ok()) {
    // A job that is over has no members.
    const TraceTargets present = TargetsOf(request->job()).value_or(TraceTargets());
    absl::MutexLock lock(&mutex_);
    TraceDesk::Orders orders;
    status = traces_.Fetch(*request, present, clock_.Now(), *reply, orders);
    SendOrders(orders);
  }
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::StatusOr<TraceTargets> CoordinatorService::TargetsOf(const std::string& job) {
  absl::MutexLock lock(&machine_mutex_);
  return coordinator_.TraceTargetsOf(job);
}

void CoordinatorService::TakeTrace(ConnectionId connection, const v1::TracePart& part) {
  TraceDesk::Orders orders;
  traces_.Take(connection, part, clock_.Now(), orders);
  SendOrders(orders);
}

// Does not drop members that do not read: the machine does that.
void CoordinatorService::SendOrders(const TraceDesk::Orders& orders) {
  for (const auto& [connection, order] : orders) {
    v1::CoordinatorMessage message;
    *message.mutable_trace_order() = order;
    links_.Send(connection, std::move(message)).IgnoreError();
  }
}

}  // namespace syncline
