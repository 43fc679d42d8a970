#include "server/service/coordinator_service.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/status.h"
#include "comm/transport/tcp/member_key.h"
#include "server/service/event_convert.h"
#include "server/service/proto_convert.h"
#include "server/service/run_ends.h"
#include "server/service/status_convert.h"

namespace syncline {
namespace {

// Limits of what one member may have waiting for the machine. A server sends one message
// for each block of a step, and meanwhile the machine may be waiting for the disk.
constexpr size_t kMaxItemsOfMember = size_t{1} << 18;
constexpr size_t kMaxBytesOfMember = size_t{128} << 20;  // the largest message has 64 MiB
// If the inputs of all members exceed the first limit, no member may exceed the second.
constexpr size_t kMaxInboxBytes = size_t{1} << 30;
constexpr size_t kShareOfFullInboxBytes = size_t{1} << 20;
constexpr size_t kEventsInStatus = 10;  // of each job

}  // namespace

PatientClock::Options PatienceOfCoordinator(const Timeouts& timeouts) {
  return {.planned = timeouts.heartbeat_interval / 2,
          .longest_gap = timeouts.heartbeat_interval,
          .settle = timeouts.connect_timeout};
}

// One Attach stream. Deletes itself when gRPC has finished with it.
class CoordinatorService::MemberStream final
    : public grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>,
      public LinkStream {
 public:
  MemberStream(CoordinatorService& service, Peer peer)
      : service_(service), peer_(std::move(peer)) {
    service_.Register(this);
    StartRead(&incoming_);
  }

  const Peer& peer() const { return peer_; }
  std::string owner() const override {
    return peer_.identity ? Describe(*peer_.identity) : "";
  }

  // The link limits the messages that wait here. The exception are answers to heartbeats,
  // of which only the latest is kept.
  void Send(std::shared_ptr<const v1::CoordinatorMessage> message) override
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    if (IsAnswer(*message)) message = WithTime(*message);
    if (IsAnswer(*message) && outgoing_.size() > 1 && IsAnswer(*outgoing_.back())) {
      outgoing_.back() = std::move(message);
      return;
    }
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(outgoing_.front().get());
  }

  void Close(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    closing_ = true;
    final_status_ = ToGrpcStatus(status);
    if (outgoing_.empty()) Finish(final_status_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      service_.Gone(this);
      Close(absl::OkStatus());
      return;
    }
    service_.Receive(this, incoming_);
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (ok) outgoing_.pop_front();
    if (!ok) outgoing_.clear();  // the read fails as well, and ends the stream
    if (!outgoing_.empty()) return StartWrite(outgoing_.front().get());
    if (closing_) Finish(final_status_);
  }

  void OnDone() override {
    service_.Gone(this);
    service_.gate_->StreamEnded(peer_);
    {
      // Waits until the caller of Finish has released the mutex.
      absl::MutexLock lock(&mutex_);
    }
    delete this;
  }

 private:
  static bool IsAnswer(const v1::CoordinatorMessage& message) {
    return message.body_case() == v1::CoordinatorMessage::BODY_NOT_SET;
  }

  // Returns a copy of the answer with the present time. Members compare their clocks with
  // it (comm/base/clock_offset.h).
  std::shared_ptr<const v1::CoordinatorMessage> WithTime(
      const v1::CoordinatorMessage& message) const {
    auto answer = std::make_shared<v1::CoordinatorMessage>(message);
    answer->set_time_ns(
        static_cast<uint64_t>(absl::ToInt64Nanoseconds(service_.clock_.Now())));
    return answer;
  }

  CoordinatorService& service_;
  const Peer peer_;
  v1::MemberMessage incoming_;

  absl::Mutex mutex_;
  std::deque<std::shared_ptr<const v1::CoordinatorMessage>> outgoing_
      ABSL_GUARDED_BY(mutex_);  // the first is being written
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status final_status_ ABSL_GUARDED_BY(mutex_);
};

// The stream of a peer that was not admitted.
class CoordinatorService::RefusedStream final
    : public grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage> {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

CallAnswer CoordinatorService::NotApplied() {
  return {.status = absl::UnavailableError("the coordinator is shutting down")};
}

CoordinatorService::CoordinatorService(CoordinatorServiceOptions options,
                                       std::unique_ptr<Gate> gate)
    : options_(std::move(options)),
      gate_(std::move(gate)),
      coordinator_(options_.coordinator),
      links_({.timeouts = options_.coordinator.timeouts}),
      patient_(PatienceOfCoordinator(options_.coordinator.timeouts)),
      preparer_([this](Prepared prepared) { OnPrepared(std::move(prepared)); }) {
  if (options_.checkpoints == nullptr) return;
  keeper_ = std::make_unique<CheckpointKeeper>(
      *options_.checkpoints, options_.log,
      [this](CheckpointAnswer answer) { OnCheckpoint(std::move(answer)); });
}

absl::StatusOr<std::unique_ptr<CoordinatorService>> CoordinatorService::Create(
    CoordinatorServiceOptions options) {
  SYNCLINE_ASSIGN_OR_RETURN(
      auto gate, Gate::Create({.tls = options.tls,
                               .revoked_file = options.revoked_file,
                               .streams_per_certificate = options.streams_per_certificate,
                               .timeouts = options.coordinator.timeouts,
                               .users = options.users,
                               .log = options.log,
                               .audit = options.audit,
                               .metrics = options.metrics}));
  options.coordinator.keeps_checkpoints = options.checkpoints != nullptr;
  std::unique_ptr<CoordinatorService> self(
      new CoordinatorService(std::move(options), std::move(gate)));
  SYNCLINE_RETURN_IF_ERROR(self->Restore());
  self->machine_ = std::thread([service = self.get()] { service->Run(); });
  return self;
}

CoordinatorService::~CoordinatorService() {
  Stop();
  if (machine_.joinable()) machine_.join();
  preparer_.Stop();
  if (keeper_ != nullptr) keeper_->Stop();
}

void CoordinatorService::Stop() {
  StopWith(Farewell("the coordinator is shutting down"));
}

// Returns the status with which streams end. Without a Failure members treat it as a
// broken stream, and connect again.
absl::Status CoordinatorService::Farewell(const char* why) const {
  const absl::Status stops = absl::UnavailableError(why);
  return options_.comes_back ? stops : WithFailure(stops, Failure::kRetryable);
}

// ---- Called on gRPC's threads, as coordinator_calls.cc is ----

grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>*
CoordinatorService::Attach(grpc::CallbackServerContext* context) {
  absl::StatusOr<Peer> peer = gate_->AdmitStream(*context);
  if (peer.ok()) return new MemberStream(*this, *std::move(peer));
  return new RefusedStream(peer.status());
}

void CoordinatorService::OnCheckpoint(CheckpointAnswer answer) {
  absl::MutexLock lock(&mutex_);
  Post({.input = std::move(answer)});
}

void CoordinatorService::OnPrepared(Prepared prepared) {
  absl::MutexLock lock(&mutex_);
  Post({.input = std::move(prepared)});
}

CoordinatorView CoordinatorService::View() {
  absl::MutexLock lock(&machine_mutex_);
  // The clock is read under the lock, so that no heartbeat in the view is later.
  return coordinator_.View(Now());
}

v1::StatusReply CoordinatorService::StatusNow() {
  v1::StatusReply reply = ToProto(View());
  AppendEnds(events_.Ends(), reply);
  AppendEvents(events_.Latest(kEventsInStatus), reply);
  reply.set_uptime_seconds(absl::ToDoubleSeconds(clock_.Now()));
  reply.set_failure_timeout_seconds(
      absl::ToDoubleSeconds(options_.coordinator.timeouts.failure_timeout));
  return reply;
}

void CoordinatorService::Register(MemberStream* stream) {
  StillLeads();
  absl::MutexLock lock(&mutex_);
  links_.Began(stream, PatientNow());
  if (stopped_) {
    stream->Close(Farewell("the coordinator is shutting down"));
  }
}

// Called when nothing more can be read, and again when the stream is destroyed.
void CoordinatorService::Gone(MemberStream* stream) {
  absl::MutexLock lock(&mutex_);
  const ConnectionId connection = links_.Ended(stream);
  if (connection != 0) PostDisconnected(connection);
}

void CoordinatorService::Receive(MemberStream* stream, const v1::MemberMessage& message) {
  if (!StillLeads()) return;  // the stream is closed
  // The body is checked before the message can make a link.
  absl::StatusOr<MemberBody> body = Disconnected{};
  const bool has_body = message.body_case() != v1::MemberMessage::BODY_NOT_SET &&
                        !message.has_resume() && !message.has_trace_part();
  if (has_body) body = FromProto(message);
  bool is_new = false;
  absl::Status refused = gate_->CheckMessage(message, stream->peer());
  if (refused.ok()) refused = body.status();
  if (refused.ok()) {
    absl::MutexLock lock(&mutex_);
    const LinkTable::Arrival arrival = links_.Heard(stream, message);
    switch (arrival.kind) {
      case LinkTable::Arrival::kHello:
        is_new = true;
        [[fallthrough]];
      case LinkTable::Arrival::kMessage:
        if (message.has_trace_part()) {
          TakeTrace(arrival.connection, message.trace_part());
        }
        if (has_body) Note(arrival.connection, *std::move(body), message.ByteSizeLong());
        break;
      case LinkTable::Arrival::kReturned:
        Post({.input = FromMember{arrival.connection, Returned{}}});
        break;
      case LinkTable::Arrival::kRefused:
        refused = arrival.status;
        if (arrival.connection != 0) PostDisconnected(arrival.connection);
        break;
      case LinkTable::Arrival::kNothing:
        break;
    }
  }
  if (is_new) gate_->Admitted(stream->peer(), message);
  if (refused.ok()) return;
  gate_->Refused("a member", stream->peer(), refused);
  stream->Close(refused);
}

// Keeps only the latest heartbeat of a member. Its other messages wait for the machine.
void CoordinatorService::Note(ConnectionId connection, MemberBody body, size_t bytes) {
  if (auto* beat = std::get_if<Heartbeat>(&body)) {
    beats_[connection] = std::move(*beat);
    changed_.SignalAll();
    return;
  }
  bytes += sizeof(Item);
  Backlog& backlog = backlogs_[connection];
  const size_t most =
      inbox_bytes_ > kMaxInboxBytes ? kShareOfFullInboxBytes : kMaxBytesOfMember;
  if (backlog.items >= kMaxItemsOfMember ||
      ((backlog.items > 0 || most < kMaxBytesOfMember) && backlog.bytes + bytes > most)) {
    links_.Close(connection,
                 WithFailure(absl::ResourceExhaustedError(absl::StrCat(
                                 backlog.items, " messages of this member (",
                                 backlog.bytes, " bytes) wait for the coordinator")),
                             Failure::kRetryable),
                 PatientNow());
    return PostDisconnected(connection);
  }
  // The heartbeat came before this message, which may be the member's last one.
  if (auto beat = beats_.extract(connection)) {
    Post({.input = FromMember{connection, std::move(beat.mapped())}});
  }
  ++backlog.items;
  backlog.bytes += bytes;
  inbox_bytes_ += bytes;
  Post({.input = FromMember{connection, std::move(body)},
        .connection = connection,
        .bytes = bytes});
}

// Heartbeats that still wait are older than the loss of the link, and are dropped.
void CoordinatorService::PostDisconnected(ConnectionId connection) {
  beats_.erase(connection);
  Post({.input = FromMember{connection, Disconnected{}}});
}

void CoordinatorService::Post(Item item) {
  inbox_.push_back(std::move(item));
  changed_.SignalAll();
}

// ---- The machine's thread ----

void CoordinatorService::Run() {
  const absl::Duration period = options_.coordinator.timeouts.heartbeat_interval / 2;
  absl::Duration next_tick = clock_.Now() + period;
  while (std::optional<Work> work = WaitForWork(std::min(next_tick, WakeAt()))) {
    if (work->item) {
      Handle(*work->item);
    } else {
      for (auto& [connection, beat] : work->beats) {
        Apply(FromMember{connection, std::move(beat)});
      }
    }
    if (!work->is_tick) continue;
    {
      absl::MutexLock lock(&mutex_);
      links_.Tick(PatientNow());
    }
    Apply(Tick{});
    next_tick = clock_.Now() + period;
  }
  KeepEvents(Keep::kNow);
  for (const Item& item : TakeInbox()) {
    if (item.answer) item.answer(NotApplied(), "");
  }
}

// Returns when the machine next has something to do, which may be before the next tick.
absl::Duration CoordinatorService::WakeAt() {
  absl::Duration wake_at;
  {
    absl::MutexLock lock(&machine_mutex_);
    wake_at = coordinator_.wake_at();
  }
  if (wake_at == absl::InfiniteDuration()) return wake_at;
  absl::MutexLock lock(&mutex_);
  return clock_.Now() + (wake_at - PatientNow());
}

// Waits for work. Returns nothing when the service stops. Messages go before heartbeats,
// so that no heartbeat overtakes an earlier message of its member. But each tick begins
// with the heartbeats, so that a member heard in the meantime does not count as silent.
std::optional<CoordinatorService::Work> CoordinatorService::WaitForWork(
    absl::Duration next_tick) {
  absl::MutexLock lock(&mutex_);
  while (!stopped_ && inbox_.empty() && beats_.empty()) {
    if (!changed_.WaitUntil(mutex_, clock_, next_tick)) break;
  }
  if (stopped_) return std::nullopt;
  Work work = {.is_tick = clock_.Now() >= next_tick};
  if (work.is_tick || inbox_.empty()) {
    work.beats.swap(beats_);
    return work;
  }
  work.item = std::move(inbox_.front());
  inbox_.pop_front();
  const auto backlog = backlogs_.find(work.item->connection);
  if (backlog != backlogs_.end()) {
    inbox_bytes_ -= work.item->bytes;
    backlog->second.bytes -= work.item->bytes;
    if (--backlog->second.items == 0) backlogs_.erase(backlog);
  }
  return work;
}

std::deque<CoordinatorService::Item> CoordinatorService::TakeInbox() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(inbox_, {});
}

void CoordinatorService::Handle(Item& item) {
  if (auto* said = std::get_if<FromMember>(&item.input)) {
    if (auto* hello = std::get_if<WorkerHello>(&said->body)) {
      hello->session_key = (uint64_t{random_()} << 32) | random_();
      hello->key = DrawKey();
    }
    if (auto* hello = std::get_if<ServerHello>(&said->body); hello && hello->stand_in) {
      hello->session_key = (uint64_t{random_()} << 32) | random_();
      hello->key = DrawKey();
    }
  }
  CallAnswer answer = NotApplied();
  std::string change;
  for (const CoordinatorOutput& output : Apply(item.input)) {
    if (const auto* found = std::get_if<CallAnswer>(&output)) answer = *found;
    const auto* said = std::get_if<LogReason>(&output);
    if (said != nullptr && change.empty()) change = said->text;
  }
  if (item.answer) item.answer(answer, change);
}

// Returns the outputs that were carried out.
CoordinatorOutputs CoordinatorService::Apply(const CoordinatorInput& input) {
  if (!StillLeads()) return {};
  absl::Duration now;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return {};
    now = PatientNow();
  }
  CoordinatorOutputs outputs;
  {
    absl::MutexLock lock(&machine_mutex_);
    outputs = coordinator_.Apply(input, now);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    // A slow disk or a pause of the process may have cost the lead in the meantime.
    if (StillLeads() && Perform(outputs[i])) continue;
    outputs.resize(i);
    break;
  }
  CloseUnread();
  KeepEvents(Keep::kWhenDue);
  return outputs;
}

// Treats members that do not read their messages as gone.
void CoordinatorService::CloseUnread() {
  for (const auto& [connection, status] : std::exchange(unread_, {})) {
    options_.log.Warning("a member does not read its messages",
                         {{"reason", std::string(status.message())}});
    {
      absl::MutexLock lock(&mutex_);
      links_.Close(connection, absl::AbortedError(status.message()), PatientNow());
    }
    Apply(FromMember{connection, Disconnected{}});
  }
}

void CoordinatorService::Log(const LogReason& reason, Logger::Fields fields) const {
  switch (reason.level) {
    case LogReason::Level::kInfo:
      return options_.log.Info(reason.text, fields);
    case LogReason::Level::kWarning:
      return options_.log.Warning(reason.text, fields);
    case LogReason::Level::kError:
      return options_.log.Error(reason.text, fields);
  }
}

// Carries out one output. Returns false if the following outputs must not be carried out.
bool CoordinatorService::Perform(const CoordinatorOutput& output) {
  if (const auto* message = std::get_if<ToMember>(&output)) {
    v1::CoordinatorMessage converted = ToProto(message->body, shared_);
    absl::MutexLock lock(&mutex_);
    absl::Status kept = links_.Send(message->connection, std::move(converted));
    if (!kept.ok()) unread_.emplace_back(message->connection, std::move(kept));
  }
  if (const auto* close = std::get_if<CloseMember>(&output)) {
    absl::MutexLock lock(&mutex_);
    links_.Close(close->connection, close->status, PatientNow());
  }
  if (const auto* prepare = std::get_if<Prepare>(&output))
    preparer_.Order(prepare->order);
  if (const auto* order = std::get_if<CheckpointOrder>(&output)) keeper_->Order(*order);
  if (const auto* reason = std::get_if<LogReason>(&output)) Log(*reason, {});
  if (const auto* event = std::get_if<CoordinatorEvent>(&output)) events_.Add(*event);
  if (const auto* persist = std::get_if<PersistState>(&output))
    return Store({kStateKey, std::make_shared<const std::string>(persist->state)});
  if (const auto* record = std::get_if<StoreRecord>(&output)) return Store(*record);
  return true;
}

}  // namespace syncline
