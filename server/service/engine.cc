#include "server/service/engine.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/transport/message.h"
#include "server/service/engine_connection.h"

namespace syncline {
namespace {

// How often links check whether there is room for what waits.
constexpr absl::Duration kPumpPeriod = absl::Milliseconds(10);
// For scrapes of metrics.
constexpr absl::Duration kCountPeriod = absl::Milliseconds(250);

// Keeps buffers of landed pushes and published views for reuse: as much as the blocks of
// four workers in flight.
constexpr size_t kPoolBytes = 8 * kDefaultWindowBytes;

// UCX addresses have a few hundred bytes. Many devices make them longer, but never this
// long.
constexpr size_t kMaxAddressBytes = 4096;

MessageKind KindOf(const MessageHeader& header) {
  return static_cast<MessageKind>(header.kind);
}

bool IsPull(const MessageHeader& header) {
  return KindOf(header) == MessageKind::kPull ||
         KindOf(header) == MessageKind::kPullAverage ||
         KindOf(header) == MessageKind::kPullState;
}

// Returns whether workers send messages of this kind. What shards send is never accepted.
bool IsForShards(MessageKind kind) {
  return kind == MessageKind::kHello || kind == MessageKind::kSeed ||
         kind == MessageKind::kPush || kind == MessageKind::kPull ||
         kind == MessageKind::kPullAverage || kind == MessageKind::kSeedState ||
         kind == MessageKind::kPullState;
}

}  // namespace

Engine::Engine(const EngineOptions& options, EngineEvents events)
    : options_(options),
      events_(std::move(events)),
      pool_(kPoolBytes),
      arena_(SharedArena::Create({})) {}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Start(const EngineOptions& options,
                                                      EngineEvents events) {
  std::unique_ptr<Engine> engine(new Engine(options, std::move(events)));
  SYNCLINE_ASSIGN_OR_RETURN(
      engine->loop_,
      TransportLoop::Start([self = engine.get()] { return self->MakeTransport(); }, {}));
  engine->loop_->Every(kPumpPeriod,
                       [self = engine.get()](Transport&) { self->PumpWaiting(); });
  engine->loop_->Every(kCountPeriod, [self = engine.get()](Transport& transport) {
    self->CountWire(transport.traffic());
  });
  return engine;
}

absl::StatusOr<std::unique_ptr<Transport>> Engine::MakeTransport() {
  const NetworkOptions options = {.plan = options_.plan,
                                  .acceptor = this,
                                  .timeouts = options_.timeouts,
                                  .arena = arena_,
                                  .log = options_.log};
  SYNCLINE_ASSIGN_OR_RETURN(auto transport, CreateNetworkTransport(options, *this));
  transport_ = transport.get();
  return transport;
}

Engine::~Engine() { Stop(); }

void Engine::Stop() {
  if (loop_ == nullptr) return;
  ReleaseAll();
  loop_->Stop();
}

// ---- Orders of the coordinator ----

absl::StatusOr<EngineJob> Engine::Build(EngineJobOptions options) {
  ShardOptions& shard = options.shard;
  // Sealed bytes, and bytes in shared memory, cannot change on their way.
  shard.checksum = NeedsChecksums(options_.plan.mode) ? Checksum::kHeaderAndPayload
                                                      : Checksum::kHeaderOnly;
  shard.publish_memory = [arena = arena_](size_t bytes) {
    return arena->Allocate(bytes);
  };
  EngineJob built;
  built.trained = static_cast<size_t>(
      std::ranges::count_if(options.blocks, [&](const ShardBlock& block) {
        return !shard.tensors[block.range.tensor].group.frozen;
      }));
  built.sends_records = options.sends_records;
  built.keeps_journal = options.keeps_journal;
  built.is_fenced = options.is_fenced;
  // The shard only keeps a reference to the pool. The engine's thread takes from it
  // later.
  SYNCLINE_ASSIGN_OR_RETURN(built.shard, Shard::Create(shard, options.blocks, pool_));
  if (options.load) SYNCLINE_RETURN_IF_ERROR(options.load(*built.shard));
  return built;
}

void Engine::Adopt(uint32_t job, EngineJob built) {
  Await([&] {
    jobs_.erase(job);
    Job& adopted = jobs_[job];
    adopted.shard = std::move(built.shard);
    adopted.times = StepTimes(built.trained);
    adopted.times.TraceTo(options_.trace, job);
    if (options_.metrics != nullptr) adopted.traffic = options_.metrics->TrafficOf(job);
    if (built.sends_records) adopted.records.Begin();
    adopted.sinks = RecordSinks(built.keeps_journal, built.sends_records);
    adopted.is_fenced = built.is_fenced;
  });
}

void Engine::Await(absl::FunctionRef<void()> task) {
  absl::Notification done;
  const bool is_posted = loop_->Post([&](Transport&) {
    task();
    done.Notify();
  });
  if (is_posted) done.WaitForNotification();
}

void Engine::Admit(uint32_t job, std::vector<EngineMember> members) {
  loop_->Post([this, job, members = std::move(members)](Transport&) {
    ForgetJob(job);
    for (const EngineMember& member : members) {
      if (!member.key.empty()) {
        keys_[{job, member.rank, member.incarnation}] = member.key;
      }
    }
    std::map<MemberIdentity, uint64_t> closed;
    for (const auto& [identity, connection] : connections_) {
      if (identity.job == job && !keys_.contains(identity)) {
        closed[identity] = connection->number();
      }
    }
    for (const auto& [identity, number] : closed) CloseConnection(identity, number);
  });
}

void Engine::Apply(uint32_t job, ShardInput input) {
  loop_->Post([this, job, input = std::move(input)](Transport&) {
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    Run(job, found->second, input);
    if (std::holds_alternative<ShardCommit>(input)) CloseNonMembers(found->second);
  });
}

void Engine::CloseNonMembers(Job& job) {
  std::erase_if(job.workers, [&](const auto& entry) {
    const WorkerLife& life = entry.first;
    return job.shard->FindMember(life.first, life.second) == nullptr;
  });
}

std::shared_ptr<Shard> Engine::Release(uint32_t job) {
  std::shared_ptr<Shard> released;
  Await([&] {
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    released = std::move(found->second.shard);
    jobs_.erase(found);
    ForgetJob(job);
    std::erase_if(connections_,
                  [&](const auto& entry) { return entry.first.job == job; });
  });
  return released;
}

std::vector<std::shared_ptr<Shard>> Engine::ReleaseAll() {
  std::vector<std::shared_ptr<Shard>> released;
  Await([&] {
    for (auto& [id, job] : jobs_) released.push_back(std::move(job.shard));
    jobs_.clear();
    keys_.clear();
    // Backups answer on connections, which would outlive their receivers.
    backups_.clear();
    connections_.clear();
    CountWire(transport_->traffic());
  });
  return released;
}

// ---- Messages of workers ----

absl::Status Engine::CheckSize(const MessageHeader& header, size_t payload_bytes) const {
  const auto job = jobs_.find(header.job);
  if (job == jobs_.end()) {
    return absl::NotFoundError(absl::StrCat("job ", header.job, " is not here"));
  }
  const Shard& shard = *job->second.shard;
  size_t limit = kMaxAddressBytes;
  if (KindOf(header) == MessageKind::kHello) {
    const ShardMember* member = shard.FindMember(header.rank, header.incarnation);
    if (member == nullptr || member->session_key != header.session_key) {
      return absl::PermissionDeniedError(
          absl::StrCat("hello of rank ", header.rank, " incarnation ", header.incarnation,
                       ", which is not a member of job ", header.job,
                       " or has the wrong session key"));
    }
  } else {
    SYNCLINE_ASSIGN_OR_RETURN(limit, shard.MaxPayloadBytes(header));
  }
  if (payload_bytes <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("payload of ", payload_bytes, " bytes from rank ", header.rank,
                   ", but at most ", limit, " are allowed"));
}

absl::StatusOr<MessageHeader> Engine::CheckArrival(ByteView bytes, size_t payload_bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader header, ParseHeader(bytes));
  if (IsOfBackup(header)) {
    SYNCLINE_RETURN_IF_ERROR(CheckBackup(header, payload_bytes));
    return header;
  }
  if (!IsForShards(KindOf(header))) {
    return absl::InvalidArgumentError(
        absl::StrCat("message kind ", header.kind, " is not for servers"));
  }
  const absl::Status status = CheckSize(header, payload_bytes);
  if (status.ok()) return header;
  TellWhyRefused(header);
  return status;
}

// Tells the worker why its message was not taken. The reason is determined now, since the
// epoch may change before the answer is sent. The answer is sent from the loop, because
// the transport calls this function from inside its library.
void Engine::TellWhyRefused(const MessageHeader& header) {
  const auto job = jobs_.find(header.job);
  if (job == jobs_.end() || KindOf(header) == MessageKind::kHello) return;
  const RefuseCode found = job->second.shard->Check(header);
  // If the header is accepted now, the payload must be too long.
  const RefuseCode code = found == RefuseCode::kNone ? RefuseCode::kMalformed : found;
  loop_->Post([this, header, code](Transport&) {
    const auto still = jobs_.find(header.job);
    if (still == jobs_.end()) return;
    Run(header.job, still->second, ShardMessage{header, {}, code});
  });
}

absl::StatusOr<Buffer> Engine::Allocate(ByteView header, size_t payload_bytes) {
  SYNCLINE_RETURN_IF_ERROR(CheckArrival(header, payload_bytes).status());
  return pool_.Allocate(payload_bytes);
}

void Engine::OnMessage(ByteView header, Buffer payload) {
  // Allocate has checked the header. The shard checks it again, because its epoch may
  // have changed since.
  const auto parsed = ParseHeader(header);
  if (parsed.ok()) Take(*parsed, Slice::Of(payload), nullptr);
}

void Engine::OnBorrowed(ByteView header, Landed payload) {
  const auto parsed = CheckArrival(header, payload.size());
  if (parsed.ok()) Take(*parsed, std::move(payload), nullptr);
}

void Engine::Take(const MessageHeader& header, Landed payload, Connection* from) {
  // Only gradients may come in two parts.
  if (payload.head.size > 0 && KindOf(header) != MessageKind::kPush) return;
  if (IsOfBackup(header)) return TakeBackup(header, payload.body, from);
  const auto found = jobs_.find(header.job);
  if (found == jobs_.end()) return;
  bytes_.fetch_add(kMessageHeaderBytes + payload.size(), std::memory_order_relaxed);
  if (KindOf(header) == MessageKind::kHello) {
    if (from == nullptr) return TakeHello(found->second, header, payload.body);
    return TakeHello(found->second, header, *from);
  }
  if (IsPull(header)) return TakePull(found->second, header);
  Run(header.job, found->second, ShardMessage{header, std::move(payload)});
}

void Engine::TakePull(Job& job, const MessageHeader& header) {
  if (job.shard->Check(header) != RefuseCode::kNone) {
    return Run(header.job, job, ShardMessage{header, {}});
  }
  const WorkerLife life = {header.rank, header.incarnation};
  const auto worker = job.workers.find(life);
  if (worker == job.workers.end()) return;
  if (CloseIfClogged(header, *worker->second)) return;
  worker->second->Ask(header);
  Pump(header.job, life);
}

void Engine::Pump(uint32_t id, WorkerLife life) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  const auto worker = job->second.workers.find(life);
  if (worker == job->second.workers.end()) return;
  WorkerLink& link = *worker->second;
  link.Pump(clock_.Now(), [&](const MessageHeader& question) {
    Run(id, job->second, ShardMessage{question, {}});
  });
  if (link.is_waiting()) waiting_.insert({id, life});
}

void Engine::CountWire(const TrafficCounts& now) {
  if (options_.metrics != nullptr) options_.metrics->CountWire(counted_, now);
  counted_ = now;
}

void Engine::PumpWaiting() {
  const auto waiting = std::exchange(waiting_, {});
  for (const auto& [job, life] : waiting) Pump(job, life);
}

void Engine::TakeHello(Job& job, const MessageHeader& header, const Slice& payload) {
  if (!CheckSize(header, payload.size).ok()) return;  // the epoch may have changed since
  const std::string address(reinterpret_cast<const char*>(payload.data), payload.size);
  const WorkerLife life = {header.rank, header.incarnation};
  // A repeated hello changes nothing.
  const auto known = job.workers.find(life);
  if (known != job.workers.end() && known->second->WasWelcomed(header)) {
    return WelcomeAgain(header, *known->second);
  }
  const uint64_t connection = next_connection_++;
  const auto on_failure = [this, id = header.job, life,
                           connection](const absl::Status& status) {
    options_.log.Warning("lost the connection to a worker",
                         {{"job", id},
                          {"rank", life.first},
                          {"incarnation", life.second},
                          {"error", std::string(status.message())}});
    // Posted, because this function is part of the endpoint that it destroys.
    loop_->Post(
        [this, id, life, connection](Transport&) { ForgetWorker(id, life, connection); });
  };
  auto endpoint = transport_->Connect(address, {.on_failure = on_failure});
  if (!endpoint.ok()) {
    options_.log.Warning("a worker cannot be answered",
                         {{"job", header.job},
                          {"rank", header.rank},
                          {"error", std::string(endpoint.status().message())}});
    return;
  }
  options_.log.Debug(
      "worker connected",
      {{"job", header.job}, {"rank", header.rank}, {"lanes", (*endpoint)->Describe()}});
  Greet(job, header, {.endpoint = *std::move(endpoint), .number = connection});
}

void Engine::Greet(Job& job, const MessageHeader& hello, WorkerLink::Parts parts) {
  const WorkerLife life = {hello.rank, hello.incarnation};
  const auto known = job.workers.find(life);
  if (known != job.workers.end() && known->second->number() == parts.number) {
    return WelcomeAgain(hello, *known->second);
  }
  parts.shard = job.shard;
  parts.most_unread_bytes = options_.most_unread_bytes;
  parts.sent = [this, id = hello.job, life] {
    const auto found = jobs_.find(id);
    if (found != jobs_.end()) found->second.times.Sent(clock_.Now());
    Pump(id, life);
  };
  std::unique_ptr<WorkerLink>& link = job.workers[life];
  link = std::make_unique<WorkerLink>(std::move(parts));
  link->Welcome(hello);
}

// Answers a repeated hello. What was sent on this connection is not sent again.
void Engine::WelcomeAgain(const MessageHeader& hello, WorkerLink& link) {
  if (!CloseIfClogged(hello, link)) link.Welcome(hello);
}

void Engine::ForgetWorker(uint32_t id, WorkerLife life, uint64_t connection) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  const auto worker = job->second.workers.find(life);
  if (worker == job->second.workers.end()) return;
  if (worker->second->number() == connection) job->second.workers.erase(worker);
}

// ---- Outputs of shards ----

void Engine::Run(uint32_t id, Job& job, const ShardInput& input) {
  const absl::Duration began = clock_.Now();
  const bool is_traced = options_.trace != nullptr && options_.trace->IsOpen(id);
  const int64_t traced_from = is_traced ? options_.trace->Now() : 0;
  const ShardOutputs outputs = job.shard->Apply(input);
  job.journal.Count(outputs);
  if (is_traced) Trace(job, input, outputs, traced_from);
  if (const auto* message = std::get_if<ShardMessage>(&input)) {
    if (KindOf(message->header) == MessageKind::kPush) {
      job.times.Worked(clock_.Now() - began);
    }
    CountInput(job, {*message, began}, outputs);
  }
  if (const auto* decision = std::get_if<ShardDecision>(&input)) {
    job.times.Worked(clock_.Now() - began);
    job.times.Decided(decision->step, began);
  }
  for (const ShardOutput& output : outputs) {
    if (const auto* reply = std::get_if<ShardReply>(&output)) {
      Send(job, *reply);
      continue;
    }
    if (const auto* applied = std::get_if<ShardApplied>(&output)) {
      CountApplied(id, job, *applied);
    }
    if (const auto* backed_up = std::get_if<ShardBackedUp>(&output)) {
      BackUpNext(id, job, *backed_up);
      continue;
    }
    if (const auto* recorded = std::get_if<ShardRecorded>(&output)) {
      const RecordSinks::Takers takers = job.sinks.Take(*recorded->record);
      for (size_t slot = 0; slot < RecordSenders::kSlots; ++slot) {
        RecordSender* const sender = job.records.at(slot);
        if (takers.backups[slot] && sender != nullptr) sender->Take(*recorded->record);
      }
      if (!takers.journal) continue;
    }
    events_.on_output(id, output);
  }
  if (const auto news = job.sinks.News()) Run(id, job, *news);
}

void Engine::Send(Job& job, const ShardReply& reply) {
  const WorkerLife life = {reply.rank, reply.incarnation};
  const auto worker = job.workers.find(life);
  if (worker == job.workers.end()) return;
  if (CloseIfClogged(reply.header, *worker->second)) return;
  if (!worker->second->Send(reply)) return;
  const size_t payload_bytes = PayloadBytes(reply.payload);
  bytes_.fetch_add(kMessageHeaderBytes + payload_bytes, std::memory_order_relaxed);
  if (job.traffic != nullptr && KindOf(reply.header) == MessageKind::kPublish) {
    job.traffic->CountPublished(payload_bytes);
  }
  Pump(reply.header.job, life);
}

void Engine::CountInput(Job& job, const Arrival& arrival, const ShardOutputs& outputs) {
  const ShardMessage& message = arrival.message;
  if (outputs.empty()) return;
  const auto* reply = std::get_if<ShardReply>(&outputs.front());
  if (reply == nullptr) return;
  const bool is_refused = KindOf(reply->header) == MessageKind::kRefuse;
  if (is_refused && job.traffic != nullptr) {
    job.traffic->CountRefused(static_cast<RefuseCode>(reply->header.code));
  }
  if (KindOf(message.header) != MessageKind::kPush) return;
  const PushResult result = is_refused       ? PushResult::kRefused
                            : reply->repeats ? PushResult::kRepeated
                                             : PushResult::kCounted;
  if (result == PushResult::kCounted) {
    job.times.Contributed(message.header.step, arrival.time);
  }
  if (job.traffic != nullptr) job.traffic->CountPush(result, message.payload.size());
}

void Engine::CountApplied(uint32_t id, Job& job, const ShardApplied& applied) {
  const uint64_t version = applied.step + 1;
  step_.store(std::max(step(), version), std::memory_order_relaxed);
  const auto took = job.times.Applied(applied.step, clock_.Now());
  if (!took || options_.metrics == nullptr) return;
  options_.metrics->ObserveStep(id, *took);
  options_.metrics->SetStep(id, version);
}

}  // namespace syncline
