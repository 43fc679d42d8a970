#include "server/coordinator/coordinator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/coordinator/member_names.h"
#include "server/coordinator/refusal.h"

namespace syncline {
namespace {

constexpr size_t kMaxShardAddressBytes = 4096;
constexpr size_t kMaxFinishedJobs = 64;  // that are still shown
constexpr absl::Duration kFinishedJobAge = absl::Hours(1);
// Limit on an engine's list of transports and devices, which is long with many network
// cards.
constexpr size_t kMaxLanesBytes = 2048;

// Checks the names, which appear in logs and in the status.
absl::Status CheckServerNames(const ServerHello& hello) {
  SYNCLINE_RETURN_IF_ERROR(CheckName("a server's name", hello.name, kMaxMemberNameBytes));
  SYNCLINE_RETURN_IF_ERROR(
      CheckUnlessEmpty("a server's list of lanes", hello.lanes, kMaxLanesBytes));
  return CheckUnlessEmpty("a server's reason for its lanes", hello.lanes_because,
                          kMaxLanesBytes);
}

absl::Status Over() {
  return WithFailure(absl::UnavailableError("the job is over"), Failure::kRetryable);
}

}  // namespace

CoordinatorOutputs Coordinator::Impl::Apply(const CoordinatorInput& input,
                                            absl::Duration now) {
  now_ = now;
  if (std::holds_alternative<Tick>(input)) {
    OnTick();
  } else if (const auto* update = std::get_if<UpdateJob>(&input)) {
    OnUpdate(*update);
  } else if (const auto* prepared = std::get_if<Prepared>(&input)) {
    OnPrepared(*prepared);
  } else if (const auto* create = std::get_if<syncline::CreateCheckpoint>(&input)) {
    OnCreate(*create);
  } else if (const auto* drain = std::get_if<DrainServer>(&input)) {
    OnDrain(*drain);
  } else if (const auto* exclude = std::get_if<ExcludeWorker>(&input)) {
    OnExclude(*exclude);
  } else if (const auto* exit = std::get_if<WorkerExit>(&input)) {
    OnExit(*exit);
  } else if (const auto* stop = std::get_if<LauncherStop>(&input)) {
    OnStop(*stop);
  } else if (const auto* pushes = std::get_if<TrainJobPushes>(&input)) {
    OnPushes(*pushes);
  } else if (const auto* answer = std::get_if<CheckpointAnswer>(&input)) {
    OnCheckpoint(*answer);
  } else if (std::holds_alternative<Start>(input)) {
    OnStart();
  } else {
    const auto& [connection, body] = std::get<FromMember>(input);
    OnMember(connection, body);
  }
  for (const auto& [name, job] : jobs_) {
    job->LetStoppedGo(now_);
    job->CloseStep(now_);
    job->EndRecoveries(now_);
  }
  CoordinatorOutputs outputs = outbox_.Take();
  ForgetClosedConnections(outputs);
  for (CoordinatorOutput& output : outputs) {
    if (auto* persist = std::get_if<PersistState>(&output)) persist->state = State();
  }
  return outputs;
}

void Coordinator::Impl::OnMember(ConnectionId connection, const MemberBody& body) {
  const auto speaker = speakers_.find(connection);
  if (speaker == speakers_.end()) {
    if (const auto* hello = std::get_if<ServerHello>(&body))
      OnServerHello(connection, *hello);
    if (const auto* hello = std::get_if<WorkerHello>(&body))
      OnWorkerHello(connection, *hello);
  } else if (speaker->second.kind == Speaker::kServer) {
    OnServer(servers_.at(speaker->second.server), body);
  } else if (speaker->second.kind == Speaker::kNewcomer) {
    declarations_.OnNewcomer(connection, body, now_);
  } else if (Job* job = FindJob(speaker->second.job); job != nullptr) {
    OnWorker(*job, speaker->second.rank, body);
  } else if (std::holds_alternative<Disconnected>(body)) {
    outbox_.Close(connection, Over());
  }
}

void Coordinator::Impl::Refuse(ConnectionId connection, const absl::Status& status) {
  RefuseMember(connection, status, outbox_);
}

// Later messages on a connection that is being closed are ignored.
void Coordinator::Impl::ForgetClosedConnections(const CoordinatorOutputs& outputs) {
  for (const CoordinatorOutput& output : outputs) {
    if (const auto* close = std::get_if<CloseMember>(&output))
      speakers_.erase(close->connection);
  }
}

Job* Coordinator::Impl::FindJob(uint32_t id) {
  for (const auto& [name, job] : jobs_) {
    if (job->id() == id && !job->IsOver()) return job.get();
  }
  return nullptr;
}

std::vector<JobServer> Coordinator::Impl::AttachedServers() const {
  std::vector<JobServer> servers;
  servers.reserve(servers_.size());
  for (const auto& [number, server] : servers_) {
    if (!server.TakesPlaces()) continue;
    servers.push_back({.server = number,
                       .incarnation = server.incarnation,
                       .connection = server.connection,
                       .name = server.name,
                       .host = server.name,
                       .shard_addresses = server.shard_addresses,
                       .memory = MemoryOf(server),
                       .journals = server.journals,
                       .attached_at = server.attached_at,
                       .feeds_two_backups = server.feeds_two_backups});
  }
  return servers;
}

// ---- Servers ----

void Coordinator::Impl::OnServerHello(ConnectionId connection, const ServerHello& hello) {
  if (const absl::Status named = CheckServerNames(hello); !named.ok()) {
    return Refuse(connection, named);
  }
  const auto holder =
      std::find_if(servers_.begin(), servers_.end(),
                   [&](const auto& entry) { return entry.second.name == hello.name; });
  if (holder != servers_.end() && holder->second.disconnected_at) {
    LoseServer(holder->first, "it came back as a new process");
  }
  if (const absl::Status fits = CheckServer(hello); !fits.ok()) {
    return Refuse(connection, fits);
  }
  const bool is_back = IsAbsent(hello);
  Job* stands_in = hello.stand_in && !is_back ? FindJob(hello.stand_in->job) : nullptr;
  if (hello.stand_in && !is_back &&
      (stands_in == nullptr || !stands_in->AwaitsStandIn(*hello.stand_in))) {
    return Refuse(connection, absl::FailedPreconditionError(
                                  "the job no longer waits for this stand-in"));
  }
  if (!is_back) LoseAbsent(hello.name);
  const uint32_t number = is_back ? hello.identity->server : next_server_++;
  const auto incarnation =
      is_back ? hello.identity->incarnation
              : static_cast<uint32_t>(server_incarnations_.Next(hello.name));
  servers_[number] = {.number = number,
                      .incarnation = incarnation,
                      .connection = connection,
                      .name = hello.name,
                      .lanes = hello.lanes,
                      .lanes_because = hello.lanes_because,
                      .shard_addresses = hello.shard_addresses,
                      .journals = hello.journals,
                      .memory_bytes = hello.memory_bytes,
                      .heard_at = now_,
                      .attached_at = now_,
                      .feeds_two_backups = hello.feeds_two_backups,
                      .is_stand_in = hello.stand_in.has_value()};
  speakers_[connection] = {.kind = Speaker::kServer, .server = number};
  if (!is_back) outbox_.Persist();
  outbox_.Send(connection, ServerWelcome{number, incarnation});
  SayOfServers(absl::StrCat("server ", number, " (", hello.name, ") ",
                            is_back ? "came back" : "attached", " with ",
                            hello.shard_addresses.size(), " engine thread",
                            hello.shard_addresses.size() == 1 ? "" : "s"));
  OnServerBack(servers_.at(number), hello);
  if (stands_in != nullptr) {
    stands_in->OnStandIn({.server = number,
                          .incarnation = incarnation,
                          .connection = connection,
                          .name = hello.name,
                          .shard_addresses = hello.shard_addresses,
                          .feeds_two_backups = hello.feeds_two_backups},
                         hello);
  }
  for (const auto& [name, job] : jobs_) job->SayWhatIsStale(number, hello);
  ReplaceServers();
  BeginJobs();
}

absl::Status Coordinator::Impl::CheckServer(const ServerHello& hello) const {
  if (std::ranges::any_of(
          servers_, [&](const auto& entry) { return entry.second.name == hello.name; })) {
    return absl::AlreadyExistsError(
        absl::StrCat("another server named '", hello.name,
                     "' is attached already; give each server a name of its own"));
  }
  const bool addresses_fit =
      !hello.shard_addresses.empty() &&
      hello.shard_addresses.size() <= kMaxEngineThreads &&
      std::all_of(hello.shard_addresses.begin(), hello.shard_addresses.end(),
                  [](const std::string& address) {
                    return address.size() <= kMaxShardAddressBytes;
                  });
  if (servers_.size() < kMaxServers && addresses_fit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("server '", hello.name, "' has ", hello.shard_addresses.size(),
                   " engine threads, and ", servers_.size(),
                   " servers are attached; at most ", kMaxEngineThreads,
                   " engine threads a server and ", kMaxServers, " servers are allowed"));
}

void Coordinator::Impl::OnServer(Server& server, const MemberBody& body) {
  server.heard_at = now_;
  if (std::holds_alternative<Disconnected>(body)) {
    server.disconnected_at = now_;
    return;
  }
  server.disconnected_at.reset();
  if (const auto* beat = std::get_if<Heartbeat>(&body)) {
    server.bytes = beat->bytes;
    for (const JobProgress& progress : beat->jobs) {
      Job* job = FindJob(progress.job);
      if (job != nullptr) job->OnServerBeat(server.number, *beat, progress);
    }
  }
  if (const auto* configured = std::get_if<JobConfigured>(&body)) {
    if (Job* job = FindJob(configured->job)) {
      job->OnConfigured(server.number, configured->step);
    }
  }
  if (const auto* failed = std::get_if<ConfigureFailed>(&body)) {
    if (Job* job = FindJob(failed->job))
      job->OnConfigureFailed(server.number, failed->status);
  }
  if (const auto* prepared = std::get_if<EpochPrepared>(&body)) {
    if (Job* job = FindJob(prepared->job)) job->OnPrepared(server.number, *prepared);
  }
  if (const auto* committed = std::get_if<EpochCommitted>(&body)) {
    if (Job* job = FindJob(committed->job)) job->OnCommitted(server.number, *committed);
  }
  if (const auto* figures = std::get_if<BlockFigures>(&body)) {
    if (Job* job = FindJob(figures->job)) job->OnFigures(server.number, *figures);
  }
  if (const auto* held = std::get_if<StepHeld>(&body)) {
    if (Job* job = FindJob(held->job)) job->OnHeld(*held);
  }
  if (const auto* written = std::get_if<CheckpointWritten>(&body)) {
    if (Job* job = FindJob(written->job)) job->OnWritten(server.number, *written);
  }
  if (const auto* lost = std::get_if<BackupLost>(&body)) {
    if (Job* job = FindJob(lost->job)) job->OnBackupLost(server.number, *lost);
  }
  if (const auto* backed_up = std::get_if<BackedUp>(&body)) {
    if (Job* job = FindJob(backed_up->job)) job->OnBackedUp(server.number, *backed_up);
  }
  if (const auto* lost = std::get_if<JournalLost>(&body)) {
    if (Job* job = FindJob(lost->job)) job->OnJournalLost(server.number, lost->reason);
  }
  if (const auto* whole = std::get_if<JournalWhole>(&body)) {
    if (Job* job = FindJob(whole->job)) job->OnJournalWhole(server.number, *whole);
  }
  if (std::holds_alternative<Drain>(body)) {
    server.drains = true;
    LetDrainedGo();
  }
  if (std::holds_alternative<Leave>(body)) {
    server.drains = true;
    LoseServer(server.number, "it left");
  }
}

void Coordinator::Impl::SayOfServers(const std::string& what, LogReason::Level level) {
  outbox_.Log(what, level);
  outbox_.Add(CoordinatorEvent{.kind = EventKind::kServer, .what = what});
}

// The server's weights are lost with it. Its jobs continue from a backup or a journal, or
// fail.
void Coordinator::Impl::LoseServer(uint32_t number, const std::string& reason) {
  const auto lost = servers_.find(number);
  SayOfServers(
      absl::StrCat("server ", number, " (", lost->second.name, ") is gone: ", reason),
      lost->second.drains ? LogReason::Level::kInfo : LogReason::Level::kWarning);
  outbox_.Close(lost->second.connection, absl::AbortedError(reason));
  const Job::ServerLoss loss = {
      .server = number,
      .at = lost->second.disconnected_at.value_or(lost->second.heard_at)};
  servers_.erase(lost);
  for (const auto& [name, job] : jobs_) job->OnServerLost(loss);
}

void Coordinator::Impl::SeekBackups() {
  const auto makes = [](const auto& entry) { return entry.second->MakesBackups(); };
  if (std::ranges::none_of(jobs_, makes)) return;
  for (const auto& [name, job] : jobs_) {  // each job leaves less memory to the next
    job->SeekBackups(ConnectedServers(), now_);
  }
}

std::vector<JobServer> Coordinator::Impl::ConnectedServers() const {
  std::vector<JobServer> connected = AttachedServers();
  std::erase_if(connected, [this](const JobServer& one) {
    return servers_.at(one.server).disconnected_at.has_value();
  });
  return connected;
}

bool Coordinator::Impl::MayMoveShares() const {
  const auto is_unsteady = [](const auto& entry) {
    return entry.second.IsLeaving() || entry.second.disconnected_at.has_value();
  };
  return absent_.empty() && std::ranges::none_of(servers_, is_unsteady);
}

void Coordinator::Impl::SpreadShares() {
  const bool may_begin = MayMoveShares();
  for (const auto& [name, job] : jobs_) {
    job->AwaitHandOver(now_);
    const bool moves = options_.spreads_shares || job->IsMoveAllowed(now_);
    if (may_begin && moves && job->MayMove()) {
      job->SpreadShares(ConnectedServers(), now_);
    }
  }
}

void Coordinator::Impl::ReplaceServers() {
  const auto lacks = [](const auto& entry) { return entry.second->LacksServers(); };
  if (std::ranges::none_of(jobs_, lacks)) return;
  const std::vector<JobServer> attached = AttachedServers();
  for (const auto& [name, job] : jobs_) job->ReplaceServers(attached);
}

// ---- Workers ----

void Coordinator::Impl::OnWorker(Job& job, uint32_t rank, const MemberBody& body) {
  if (const auto* beat = std::get_if<Heartbeat>(&body))
    job.OnHeartbeat(rank, *beat, now_);
  if (const auto* report = std::get_if<LossReport>(&body)) job.OnLoss(*report);
  if (const auto* barrier = std::get_if<BarrierEntered>(&body)) {
    job.OnBarrier(rank, barrier->barrier);
  }
  if (const auto* leave = std::get_if<Leave>(&body)) job.OnLeave(rank, *leave);
  if (std::holds_alternative<Disconnected>(body)) job.OnDisconnected(rank, now_);
  if (std::holds_alternative<Returned>(body)) job.OnReturned(rank, now_);
}

void Coordinator::Impl::OnTick() {
  std::map<uint32_t, std::string> lost;
  for (const auto& [number, server] : servers_) {
    if (now_ - server.heard_at >= options_.timeouts.lease) {
      lost[number] = absl::StrCat("no heartbeat for ",
                                  absl::FormatDuration(options_.timeouts.lease));
    } else if (server.disconnected_at &&
               now_ - *server.disconnected_at >= options_.timeouts.reconnect_grace) {
      lost[number] = "its connection broke and was not restored";
    }
  }
  for (const auto& [number, reason] : lost) LoseServer(number, reason);
  std::set<std::string> used;
  for (const auto& [name, job] : jobs_) {
    job->Tick(now_, ServersAttached());
    if (!job->IsOver()) used.insert(job->declared()->declaration.digest);
  }
  ForgetAbsent();
  ReplaceServers();
  SeekBackups();
  SpreadShares();
  LetDrainedGo();
  declarations_.Tick(now_, used);
  for (const ConnectionId connection : declarations_.WhoWaits()) MaybeAdmit(connection);
  ForgetFinishedJobs();
  WatchGoals();
  AnswerGoals();
  NameSlowest();
}

void Coordinator::Impl::ForgetFinishedJobs() {
  std::multimap<absl::Duration, std::string> finished;  // by the time of their end
  for (const auto& [name, job] : jobs_) {
    if (job->ended_at()) finished.emplace(*job->ended_at(), name);
  }
  while (!finished.empty() && (finished.size() > kMaxFinishedJobs ||
                               now_ - finished.begin()->first > kFinishedJobAge)) {
    jobs_.erase(finished.begin()->second);
    finished.erase(finished.begin());
  }
}

void Coordinator::Impl::OnCheckpoint(const CheckpointAnswer& answer) {
  if (const auto* found = std::get_if<CheckpointFound>(&answer)) {
    if (Job* job = FindJob(found->job)) job->OnFound(*found);
    BeginJobs();
  }
  if (const auto* kept = std::get_if<CheckpointKept>(&answer)) {
    if (Job* job = FindJob(kept->job)) job->OnKept(*kept, now_);
  }
  if (const auto* settled = std::get_if<CheckpointsSettled>(&answer)) {
    if (Job* job = FindJob(settled->job)) job->OnSettled();
  }
}

// ---- Status ----

CoordinatorView Coordinator::Impl::View(absl::Duration now) const {
  CoordinatorView view;
  Job::LostServers lost;
  for (const auto& [number, server] : servers_) {
    view.servers.push_back(
        {.server = number,
         .incarnation = server.incarnation,
         .name = server.name,
         .lanes = server.lanes,
         .lanes_because = server.lanes_because,
         .shards = static_cast<uint32_t>(server.shard_addresses.size()),
         .bytes = server.bytes,
         .memory_budget_bytes = server.memory_bytes,
         .memory_placed_bytes = MemoryOf(server).placed_bytes,
         .heartbeat_age = now - server.heard_at,
         .drains = server.IsLeaving()});
    if (!server.disconnected_at) continue;
    view.servers.back().lost_for = now - *server.disconnected_at;
    lost[number] = *server.disconnected_at;
  }
  for (const auto& [number, server] : absent_) {
    view.servers.push_back({.server = number,
                            .incarnation = server.incarnation,
                            .name = server.name,
                            .heartbeat_age = now - started_at_,
                            .lost_for = now - started_at_});
  }
  for (const auto& [name, job] : jobs_) {
    JobView& shown = view.jobs.emplace_back(job->View(now, lost));
    shown.goals = ViewGoals(shown.job, now);
    shown.answers = ViewAnswers(*job, now);
    if (!job->IsOver() && !job->HasServers()) {
      shown.attached_servers = static_cast<uint32_t>(ServersAttached());
    }
  }
  return view;
}

absl::Duration Coordinator::Impl::wake_at() const {
  absl::Duration wake_at = absl::InfiniteDuration();
  for (const auto& [name, job] : jobs_) wake_at = std::min(wake_at, job->wake_at());
  return wake_at;
}

Coordinator::Coordinator(const CoordinatorOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
Coordinator::~Coordinator() = default;

absl::Status Coordinator::Restore(const StoredState& stored,
                                  const DeclarationReader& reader) {
  return impl_->Restore(stored, reader);
}
uint64_t Coordinator::term() const { return impl_->term(); }
CoordinatorOutputs Coordinator::Apply(const CoordinatorInput& input, absl::Duration now) {
  return impl_->Apply(input, now);
}
CoordinatorView Coordinator::View(absl::Duration now) const { return impl_->View(now); }
absl::Duration Coordinator::wake_at() const { return impl_->wake_at(); }

}  // namespace syncline
