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
constexpr size_t kMaxFinishedJobs = 64;  // over, and still shown
constexpr absl::Duration kFinishedJobAge = absl::Hours(1);
// Transports with their devices, of an engine with many network cards.
constexpr size_t kMaxLanesBytes = 2048;

// Names of members stand in logs and in the status.
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
  outputs_.clear();
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
  } else if (const auto* answer = std::get_if<CheckpointAnswer>(&input)) {
    OnCheckpoint(*answer);
  } else if (std::holds_alternative<Start>(input)) {
    OnStart();
  } else {
    const auto& [connection, body] = std::get<FromMember>(input);
    OnMember(connection, body);
  }
  for (const auto& [name, job] : jobs_) {
    job->LetStoppedGo(now_, outputs_);
    job->CloseStep(now_, outputs_);
    job->EndRecoveries(now_, outputs_);
  }
  ForgetClosedConnections();
  for (CoordinatorOutput& output : outputs_) {
    if (auto* persist = std::get_if<PersistState>(&output)) persist->state = State();
  }
  return std::move(outputs_);
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
    declarations_.OnNewcomer(connection, body, now_, outputs_);
  } else if (Job* job = FindJob(speaker->second.job); job != nullptr) {
    OnWorker(*job, speaker->second.rank, body);
  } else if (std::holds_alternative<Disconnected>(body)) {
    outputs_.push_back(CloseMember{connection, Over()});
  }
}

void Coordinator::Impl::Refuse(ConnectionId connection, const absl::Status& status) {
  RefuseMember(connection, status, outputs_);
}

// What is said on a connection that is being closed is not heard any more.
void Coordinator::Impl::ForgetClosedConnections() {
  for (const CoordinatorOutput& output : outputs_) {
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
                       .journals = server.journals});
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
                                  "the job waits for no such stand-in any more"));
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
                      .is_stand_in = hello.stand_in.has_value()};
  speakers_[connection] = {.kind = Speaker::kServer, .server = number};
  if (!is_back) outputs_.push_back(PersistState{});
  outputs_.push_back(ToMember{connection, ServerWelcome{number, incarnation}});
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
                          .shard_addresses = hello.shard_addresses},
                         hello, outputs_);
  }
  for (const auto& [name, job] : jobs_) job->SayWhatIsStale(number, hello, outputs_);
  ReplaceServers();
  BeginJobs();
}

absl::Status Coordinator::Impl::CheckServer(const ServerHello& hello) const {
  if (std::ranges::any_of(
          servers_, [&](const auto& entry) { return entry.second.name == hello.name; })) {
    return absl::AlreadyExistsError(
        absl::StrCat("a server named '", hello.name, "' is attached already"));
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
      absl::StrCat("server '", hello.name, "' brings ", hello.shard_addresses.size(),
                   " engine threads to ", servers_.size(), " servers; the limits are ",
                   kMaxEngineThreads, " and ", kMaxServers));
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
      job->OnConfigured(server.number, configured->step, outputs_);
    }
  }
  if (const auto* failed = std::get_if<ConfigureFailed>(&body)) {
    if (Job* job = FindJob(failed->job))
      job->OnConfigureFailed(server.number, failed->status, outputs_);
  }
  if (const auto* prepared = std::get_if<EpochPrepared>(&body)) {
    if (Job* job = FindJob(prepared->job))
      job->OnPrepared(server.number, *prepared, outputs_);
  }
  if (const auto* committed = std::get_if<EpochCommitted>(&body)) {
    if (Job* job = FindJob(committed->job))
      job->OnCommitted(server.number, *committed, outputs_);
  }
  if (const auto* figures = std::get_if<BlockFigures>(&body)) {
    if (Job* job = FindJob(figures->job)) job->OnFigures(*figures, outputs_);
  }
  if (const auto* held = std::get_if<StepHeld>(&body)) {
    if (Job* job = FindJob(held->job)) job->OnHeld(*held);
  }
  if (const auto* written = std::get_if<CheckpointWritten>(&body)) {
    if (Job* job = FindJob(written->job))
      job->OnWritten(server.number, *written, outputs_);
  }
  if (const auto* lost = std::get_if<BackupLost>(&body)) {
    if (Job* job = FindJob(lost->job))
      job->OnBackupLost(server.number, lost->reason, outputs_);
  }
  if (const auto* backed_up = std::get_if<BackedUp>(&body)) {
    if (Job* job = FindJob(backed_up->job))
      job->OnBackedUp(server.number, *backed_up, outputs_);
  }
  if (const auto* lost = std::get_if<JournalLost>(&body)) {
    if (Job* job = FindJob(lost->job))
      job->OnJournalLost(server.number, lost->reason, outputs_);
  }
  if (const auto* whole = std::get_if<JournalWhole>(&body)) {
    if (Job* job = FindJob(whole->job))
      job->OnJournalWhole(server.number, *whole, outputs_);
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
  outputs_.push_back(LogReason{what, level});
  outputs_.push_back(CoordinatorEvent{.kind = EventKind::kServer, .what = what});
}

// Its weights are gone with it: what it served goes on from its journal, or not at all.
void Coordinator::Impl::LoseServer(uint32_t number, const std::string& reason) {
  const auto lost = servers_.find(number);
  SayOfServers(
      absl::StrCat("server ", number, " (", lost->second.name, ") is gone: ", reason),
      lost->second.drains ? LogReason::Level::kInfo : LogReason::Level::kWarning);
  outputs_.push_back(CloseMember{lost->second.connection, absl::AbortedError(reason)});
  const Job::ServerLoss loss = {
      .server = number,
      .at = lost->second.disconnected_at.value_or(lost->second.heard_at)};
  servers_.erase(lost);
  for (const auto& [name, job] : jobs_) job->OnServerLost(loss, outputs_);
}

void Coordinator::Impl::SeekBackups() {
  const auto lacks = [](const auto& entry) { return entry.second->LacksBackups(); };
  if (std::ranges::none_of(jobs_, lacks)) return;
  for (const auto& [name, job] : jobs_) {
    std::vector<JobServer> connected =
        AttachedServers();  // each takes memory from the next
    std::erase_if(connected, [this](const JobServer& one) {
      return servers_.at(one.server).disconnected_at.has_value();
    });
    job->SeekBackups(connected, now_, outputs_);
  }
}

void Coordinator::Impl::ReplaceServers() {
  const auto lacks = [](const auto& entry) { return entry.second->LacksServers(); };
  if (std::ranges::none_of(jobs_, lacks)) return;
  const std::vector<JobServer> attached = AttachedServers();
  for (const auto& [name, job] : jobs_) job->ReplaceServers(attached, outputs_);
}

// ---- Workers ----

void Coordinator::Impl::OnWorker(Job& job, uint32_t rank, const MemberBody& body) {
  if (const auto* beat = std::get_if<Heartbeat>(&body))
    job.OnHeartbeat(rank, *beat, now_, outputs_);
  if (const auto* report = std::get_if<LossReport>(&body)) job.OnLoss(*report);
  if (const auto* barrier = std::get_if<BarrierEntered>(&body)) {
    job.OnBarrier(rank, barrier->barrier, outputs_);
  }
  if (const auto* leave = std::get_if<Leave>(&body)) job.OnLeave(rank, *leave, outputs_);
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
      lost[number] = "its connection broke and did not come back";
    }
  }
  for (const auto& [number, reason] : lost) LoseServer(number, reason);
  std::set<std::string> used;
  for (const auto& [name, job] : jobs_) {
    job->Tick(now_, ServersAttached(), outputs_);
    if (!job->IsOver()) used.insert(job->declared()->declaration.digest);
  }
  ForgetAbsent();
  ReplaceServers();
  SeekBackups();
  LetDrainedGo();
  declarations_.Tick(now_, used, outputs_);
  for (const ConnectionId connection : declarations_.WhoWaits()) MaybeAdmit(connection);
  ForgetFinishedJobs();
  WatchGoals();
  AnswerGoals();
}

void Coordinator::Impl::ForgetFinishedJobs() {
  std::multimap<absl::Duration, std::string> finished;  // by their ends
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
    if (Job* job = FindJob(found->job)) job->OnFound(*found, outputs_);
    BeginJobs();
  }
  if (const auto* kept = std::get_if<CheckpointKept>(&answer)) {
    if (Job* job = FindJob(kept->job)) job->OnKept(*kept, now_, outputs_);
  }
  if (const auto* settled = std::get_if<CheckpointsSettled>(&answer)) {
    if (Job* job = FindJob(settled->job)) job->OnSettled(outputs_);
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
