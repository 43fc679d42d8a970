#include "server/service/coordinator_service.h"

#include <deque>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/attach_stream.h"
#include "comm/rpc/status.h"
#include "server/service/proto_convert.h"

namespace syncline {
namespace {

constexpr char kStateKey[] = "coordinator";
// "0.1.0", and what a packager adds.
constexpr size_t kMaxBuildBytes = 64;

absl::Status CheckProtocol(uint32_t theirs, const std::string& build) {
  if (theirs == kProtocolVersion) return absl::OkStatus();
  return WithFailure(absl::FailedPreconditionError(absl::StrCat(
                         "client ", Printable(build, kMaxBuildBytes), " speaks protocol ",
                         theirs, ", this coordinator (", SYNCLINE_VERSION, ") speaks ",
                         kProtocolVersion, ": install the same version on both sides")),
                     Failure::kVersionMismatch);
}

}  // namespace

// One Attach stream. Deletes itself when gRPC is done with it.
class CoordinatorService::MemberStream final
    : public grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage> {
 public:
  explicit MemberStream(CoordinatorService& service) : service_(service) {
    connection_ = service_.Register(this);
    StartRead(&incoming_);
  }

  void Send(v1::CoordinatorMessage message) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  // Ends the stream once everything sent before is written.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    closing_ = true;
    final_status_ = ToGrpcStatus(status);
    if (outgoing_.empty()) Finish(final_status_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      service_.Gone(connection_);
      Close(absl::OkStatus());
      return;
    }
    service_.Receive(connection_, incoming_);
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (ok) outgoing_.pop_front();
    if (!ok) outgoing_.clear();  // the read fails as well, and ends the stream
    if (!outgoing_.empty()) return StartWrite(&outgoing_.front());
    if (closing_) Finish(final_status_);
  }

  void OnDone() override {
    service_.Unregister(connection_);
    delete this;
  }

 private:
  CoordinatorService& service_;
  ConnectionId connection_ = 0;
  v1::MemberMessage incoming_;

  absl::Mutex mutex_;
  std::deque<v1::CoordinatorMessage> outgoing_
      ABSL_GUARDED_BY(mutex_);  // the first is being written
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status final_status_ ABSL_GUARDED_BY(mutex_);
};

CoordinatorService::CoordinatorService(CoordinatorServiceOptions options)
    : options_(std::move(options)), coordinator_(options_.coordinator) {}

absl::StatusOr<std::unique_ptr<CoordinatorService>> CoordinatorService::Create(
    CoordinatorServiceOptions options) {
  std::unique_ptr<CoordinatorService> self(new CoordinatorService(std::move(options)));
  SYNCLINE_ASSIGN_OR_RETURN(const auto stored, self->options_.store->Load(kStateKey));
  if (stored.has_value()) {
    absl::MutexLock lock(&self->mutex_);
    SYNCLINE_RETURN_IF_ERROR(self->coordinator_.Restore(stored->value));
    self->stored_version_ = stored->version;
  }
  self->ticker_ = std::thread([service = self.get()] { service->TickUntilStopped(); });
  return self;
}

CoordinatorService::~CoordinatorService() {
  Stop();
  if (ticker_.joinable()) ticker_.join();
}

void CoordinatorService::Stop() {
  absl::MutexLock lock(&mutex_);
  if (stopped_) return;
  stopped_ = true;
  changed_.SignalAll();
  CloseAll(WithFailure(absl::UnavailableError("the coordinator is shutting down"),
                       Failure::kRetryable));
}

void CoordinatorService::TickUntilStopped() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration period = options_.coordinator.timeouts.heartbeat_interval / 2;
  while (!stopped_) {
    const absl::Duration next = clock_.Now() + period;
    while (!stopped_ && changed_.WaitUntil(mutex_, clock_, next)) {
    }
    Apply(Tick{});
  }
}

grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>*
CoordinatorService::Attach(grpc::CallbackServerContext*) {
  return new MemberStream(*this);
}

grpc::ServerUnaryReactor* CoordinatorService::Status(grpc::CallbackServerContext* context,
                                                     const v1::StatusRequest*,
                                                     v1::StatusReply* reply) {
  *reply = StatusNow();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::UpdateJob(
    grpc::CallbackServerContext* context, const v1::UpdateJobRequest* request,
    v1::UpdateJobReply* reply) {
  const UpdateAnswer answer = Update(*request);
  reply->set_epoch(answer.epoch);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(answer.status));
  return reactor;
}

UpdateAnswer CoordinatorService::Update(const v1::UpdateJobRequest& request) {
  absl::MutexLock lock(&mutex_);
  for (const CoordinatorOutput& output : Apply(FromProto(request))) {
    if (const auto* answer = std::get_if<UpdateAnswer>(&output)) return *answer;
  }
  return {.status = absl::UnavailableError("the coordinator is shutting down")};
}

CoordinatorView CoordinatorService::View() {
  absl::MutexLock lock(&mutex_);
  return coordinator_.View(clock_.Now());
}

v1::StatusReply CoordinatorService::StatusNow() {
  v1::StatusReply reply = ToProto(View());
  reply.set_uptime_seconds(absl::ToDoubleSeconds(clock_.Now()));
  return reply;
}

ConnectionId CoordinatorService::Register(MemberStream* stream) {
  absl::MutexLock lock(&mutex_);
  streams_[next_connection_] = stream;
  if (stopped_) stream->Close(absl::UnavailableError("the coordinator is shutting down"));
  return next_connection_++;
}

void CoordinatorService::Unregister(ConnectionId connection) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(connection);
}

void CoordinatorService::Gone(ConnectionId connection) {
  absl::MutexLock lock(&mutex_);
  Apply(FromMember{connection, Disconnected{}});
}

void CoordinatorService::Receive(ConnectionId connection,
                                 const v1::MemberMessage& message) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<MemberBody> body = Read(message);
  if (body.ok()) {
    Apply(FromMember{connection, *std::move(body)});
    return;
  }
  options_.log.Warning("refused a member",
                       {{"reason", Printable(std::string(body.status().message()))}});
  if (const auto stream = streams_.find(connection); stream != streams_.end()) {
    stream->second->Close(body.status());
  }
}

absl::StatusOr<MemberBody> CoordinatorService::Read(const v1::MemberMessage& message) {
  if (message.has_server_hello()) {
    const v1::ServerHello& hello = message.server_hello();
    SYNCLINE_RETURN_IF_ERROR(
        CheckProtocol(hello.protocol_version(), hello.build_version()));
  }
  if (message.has_worker_hello()) {
    const v1::WorkerHello& hello = message.worker_hello();
    SYNCLINE_RETURN_IF_ERROR(
        CheckProtocol(hello.protocol_version(), hello.build_version()));
  }
  SYNCLINE_ASSIGN_OR_RETURN(MemberBody body, FromProto(message));
  if (auto* hello = std::get_if<WorkerHello>(&body)) {
    hello->session_key = (uint64_t{random_()} << 32) | random_();
  }
  return body;
}

// What was carried out.
CoordinatorOutputs CoordinatorService::Apply(const CoordinatorInput& input) {
  if (stopped_) return {};
  CoordinatorOutputs outputs = coordinator_.Apply(input, clock_.Now());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (Perform(outputs[i])) continue;
    outputs.resize(i);
    break;
  }
  return outputs;
}

// False when the rest must not be done.
bool CoordinatorService::Perform(const CoordinatorOutput& output) {
  if (const auto* message = std::get_if<ToMember>(&output)) {
    const auto stream = streams_.find(message->connection);
    if (stream != streams_.end()) stream->second->Send(ToProto(message->body));
  }
  if (const auto* close = std::get_if<CloseMember>(&output)) {
    const auto stream = streams_.find(close->connection);
    if (stream != streams_.end()) stream->second->Close(close->status);
  }
  if (const auto* reason = std::get_if<LogReason>(&output))
    options_.log.Info(reason->text);
  if (const auto* persist = std::get_if<PersistState>(&output))
    return Store(persist->state);
  return true;
}

bool CoordinatorService::Store(const std::string& state) {
  const absl::StatusOr<int64_t> version =
      options_.store->CompareAndSet(kStateKey, stored_version_, state);
  if (version.ok()) {
    stored_version_ = *version;
    return true;
  }
  options_.log.Error("the coordinator's state could not be stored, it stops",
                     {{"error", std::string(version.status().message())}});
  stopped_ = true;
  changed_.SignalAll();
  CloseAll(WithFailure(absl::UnavailableError("the coordinator cannot store its state"),
                       Failure::kRetryable));
  options_.on_fatal(version.status());
  return false;
}

void CoordinatorService::CloseAll(const absl::Status& status) {
  for (const auto& [connection, stream] : streams_) stream->Close(status);
}

}  // namespace syncline
