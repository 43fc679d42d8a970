#include "server/coordinator/coordinator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/limits.h"
#include "comm/base/nearest.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "nlohmann/json.hpp"
#include "server/coordinator/job.h"

namespace syncline {
namespace {

constexpr int kStateVersion = 1;

constexpr size_t kMaxShardAddressBytes = 4096;
constexpr size_t kMaxFinishedJobs = 64;  // over, and still shown
constexpr absl::Duration kFinishedJobAge = absl::Hours(1);
constexpr size_t kMaxUnusedNames = 1024;  // of jobs, and of servers
// HOST:PID, or what --advertise says; a host's name has at most 253 bytes.
constexpr size_t kMaxMemberNameBytes = 320;
// Transports with their devices, of an engine with many network cards.
constexpr size_t kMaxLanesBytes = 2048;
// What a refused member sent may be part of the message, and long.
constexpr size_t kMaxRefusalBytes = 1000;

absl::Status CheckUnlessEmpty(std::string_view what, std::string_view name,
                              size_t max_bytes) {
  return name.empty() ? absl::OkStatus() : CheckName(what, name, max_bytes);
}

// Names of members stand in logs and in the status.
absl::Status CheckServerNames(const ServerHello& hello) {
  SYNCLINE_RETURN_IF_ERROR(CheckName("a server's name", hello.name, kMaxMemberNameBytes));
  return CheckUnlessEmpty("a server's list of lanes", hello.lanes, kMaxLanesBytes);
}

absl::Status CheckWorkerNames(const WorkerHello& hello) {
  SYNCLINE_RETURN_IF_ERROR(
      CheckUnlessEmpty("a worker's name", hello.name, kMaxMemberNameBytes));
  return CheckUnlessEmpty("a run id", hello.run_id, kMaxJobNameBytes);
}

absl::Status Over() {
  return WithFailure(absl::UnavailableError("the job is over"), Failure::kRetryable);
}

}  // namespace

class Coordinator::Impl {
 public:
  explicit Impl(const CoordinatorOptions& options) : options_(options) {}

  absl::Status Restore(const std::string& state);
  CoordinatorOutputs Apply(const CoordinatorInput& input, absl::Duration now);
  CoordinatorView View(absl::Duration now) const;

 private:
  struct Server {
    uint32_t number = 0;
    uint32_t incarnation = 0;
    ConnectionId connection = 0;
    std::string name;
    std::string lanes;
    std::vector<std::string> shard_addresses;
    uint64_t memory_bytes = 0;
    uint64_t bytes = 0;
    absl::Duration heard_at;
    std::optional<absl::Duration> disconnected_at = std::nullopt;
  };
  // Who speaks on a connection. A worker's job may be over by now; its name may belong to
  // a later job.
  struct Speaker {
    enum Kind { kServer, kWorker } kind = kServer;
    uint32_t server = 0;
    uint32_t job = 0;
    uint32_t rank = 0;
  };

  void OnServerHello(ConnectionId connection, const ServerHello& hello);
  void OnWorkerHello(ConnectionId connection, const WorkerHello& hello);
  void OnServer(Server& server, const MemberBody& body);
  void OnWorker(Job& job, uint32_t rank, const MemberBody& body);
  void OnTick();
  void OnUpdate(const UpdateJob& update);
  void LoseServer(uint32_t number, const std::string& reason);
  void Refuse(ConnectionId connection, const absl::Status& status);
  Job* FindJob(uint32_t id);
  ServerMemory MemoryOf(const Server& server) const;
  absl::Status CheckFits(const JobSpec& spec) const;
  void ForgetFinishedJobs();
  void ForgetUnusedNames();
  void BeginJobs();
  std::vector<JobServer> AttachedServers() const;
  void ForgetClosedConnections();
  std::string State();

  const CoordinatorOptions options_;
  Counters counters_;
  uint32_t next_server_ = 0;
  std::map<uint32_t, Server> servers_;  // attached, by number
  GrowingNumbers server_incarnations_;  // by name
  // By name; one that is over stays for a while, unless replaced.
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::map<ConnectionId, Speaker> speakers_;

  // Of the Apply under way.
  absl::Duration now_;
  CoordinatorOutputs outputs_;
};

CoordinatorOutputs Coordinator::Impl::Apply(const CoordinatorInput& input,
                                            absl::Duration now) {
  now_ = now;
  outputs_.clear();
  if (std::holds_alternative<Tick>(input)) {
    OnTick();
  } else if (const auto* update = std::get_if<UpdateJob>(&input)) {
    OnUpdate(*update);
  } else {
    const auto& [connection, body] = std::get<FromMember>(input);
    const auto speaker = speakers_.find(connection);
    if (speaker == speakers_.end()) {
      if (const auto* hello = std::get_if<ServerHello>(&body))
        OnServerHello(connection, *hello);
      if (const auto* hello = std::get_if<WorkerHello>(&body))
        OnWorkerHello(connection, *hello);
    } else if (speaker->second.kind == Speaker::kServer) {
      OnServer(servers_.at(speaker->second.server), body);
    } else if (Job* job = FindJob(speaker->second.job); job != nullptr) {
      OnWorker(*job, speaker->second.rank, body);
    } else if (std::holds_alternative<Disconnected>(body)) {
      outputs_.push_back(CloseMember{connection, Over()});
    }
  }
  ForgetClosedConnections();
  for (CoordinatorOutput& output : outputs_) {
    if (auto* persist = std::get_if<PersistState>(&output)) persist->state = State();
  }
  return std::move(outputs_);
}

void Coordinator::Impl::Refuse(ConnectionId connection, const absl::Status& status) {
  const std::string why =
      Printable(std::string_view(status.message().data(), status.message().size()),
                kMaxRefusalBytes);
  outputs_.push_back(LogReason{absl::StrCat("refused: ", why)});
  outputs_.push_back(CloseMember{
      connection, WithFailure(absl::Status(status.code(), why), FailureOf(status))});
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

ServerMemory Coordinator::Impl::MemoryOf(const Server& server) const {
  ServerMemory memory = {.name = server.name,
                         .shards = static_cast<uint32_t>(server.shard_addresses.size()),
                         .budget_bytes = server.memory_bytes};
  for (const auto& [name, job] : jobs_)
    memory.placed_bytes += job->BytesOn(server.number);
  return memory;
}

// A job that waits for servers is not refused for what those that are there have.
absl::Status Coordinator::Impl::CheckFits(const JobSpec& spec) const {
  if (servers_.empty() || servers_.size() < options_.expected_servers) {
    return absl::OkStatus();
  }
  std::vector<ServerMemory> memory;
  for (const auto& [number, server] : servers_) memory.push_back(MemoryOf(server));
  return PlaceJob(spec, memory).status();
}

// Only hellos can complete what a job waits for. The servers are listed, with all their
// addresses, only when a job is full.
void Coordinator::Impl::BeginJobs() {
  for (const auto& [name, job] : jobs_) {
    if (!job->IsFull()) continue;
    // One that begins takes memory from the next.
    job->MaybeBegin(AttachedServers(), outputs_);
  }
}

std::vector<JobServer> Coordinator::Impl::AttachedServers() const {
  std::vector<JobServer> servers;
  servers.reserve(servers_.size());
  for (const auto& [number, server] : servers_) {
    servers.push_back({number, server.connection, server.name, server.shard_addresses,
                       MemoryOf(server)});
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
  } else if (holder != servers_.end()) {
    return Refuse(connection,
                  absl::AlreadyExistsError(absl::StrCat("a server named '", hello.name,
                                                        "' is attached already")));
  }
  const bool addresses_fit =
      !hello.shard_addresses.empty() &&
      hello.shard_addresses.size() <= kMaxEngineThreads &&
      std::all_of(hello.shard_addresses.begin(), hello.shard_addresses.end(),
                  [](const std::string& address) {
                    return address.size() <= kMaxShardAddressBytes;
                  });
  if (servers_.size() >= kMaxServers || !addresses_fit) {
    return Refuse(connection,
                  absl::ResourceExhaustedError(absl::StrCat(
                      "server '", hello.name, "' brings ", hello.shard_addresses.size(),
                      " engine threads to ", servers_.size(), " servers; the limits are ",
                      kMaxEngineThreads, " and ", kMaxServers)));
  }
  const uint32_t number = next_server_++;
  const auto incarnation = static_cast<uint32_t>(server_incarnations_.Next(hello.name));
  servers_[number] = {.number = number,
                      .incarnation = incarnation,
                      .connection = connection,
                      .name = hello.name,
                      .lanes = hello.lanes,
                      .shard_addresses = hello.shard_addresses,
                      .memory_bytes = hello.memory_bytes,
                      .heard_at = now_};
  speakers_[connection] = {.kind = Speaker::kServer, .server = number};
  outputs_.push_back(PersistState{});
  outputs_.push_back(ToMember{connection, ServerWelcome{number, incarnation}});
  outputs_.push_back(
      LogReason{absl::StrCat("server ", number, " (", hello.name, ") attached with ",
                             hello.shard_addresses.size(), " engine threads")});
  BeginJobs();
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
    if (Job* job = FindJob(configured->job)) job->OnConfigured(server.number, outputs_);
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
  if (std::holds_alternative<Leave>(body)) return LoseServer(server.number, "it left");
}

// Without replication a server's weights are gone with it; the jobs that it served cannot
// go on.
void Coordinator::Impl::LoseServer(uint32_t number, const std::string& reason) {
  const auto lost = servers_.find(number);
  outputs_.push_back(LogReason{
      absl::StrCat("server ", number, " (", lost->second.name, ") is gone: ", reason)});
  outputs_.push_back(CloseMember{lost->second.connection, absl::AbortedError(reason)});
  servers_.erase(lost);
  for (const auto& [name, job] : jobs_) job->OnServerLost(number, outputs_);
}

// ---- Workers ----

void Coordinator::Impl::OnWorkerHello(ConnectionId connection, const WorkerHello& hello) {
  if (const absl::Status named = CheckWorkerNames(hello); !named.ok()) {
    return Refuse(connection, named);
  }
  // All but the first worker of a job say what was found valid before: with 100,000
  // tensors a comparison takes milliseconds, a validation the better part of a second.
  const auto known = jobs_.find(hello.job.name);
  const bool is_valid = known != jobs_.end() && !known->second->IsOver() &&
                        known->second->IsDeclaredAs(hello.job);
  if (!is_valid) {
    if (const absl::Status valid = ValidateJob(hello.job); !valid.ok()) {
      return Refuse(connection, valid);
    }
  }
  if (known != jobs_.end()) known->second->EndIfAbandoned(hello.run_id, outputs_);
  const bool is_new = known == jobs_.end() || known->second->IsOver();
  if (is_new) {
    if (const absl::Status fits = CheckFits(hello.job); !fits.ok()) {
      return Refuse(connection, fits);
    }
  }
  std::unique_ptr<Job>& job = jobs_[hello.job.name];
  if (is_new)
    job = std::make_unique<Job>(counters_.next_job++, hello, options_, counters_);
  const absl::Status admitted = job->Admit(connection, hello, now_, outputs_);
  if (!admitted.ok()) {
    if (is_new) jobs_.erase(hello.job.name);
    return Refuse(connection, admitted);
  }
  speakers_[connection] = {
      .kind = Speaker::kWorker, .job = job->id(), .rank = hello.rank};
  if (is_new) outputs_.push_back(PersistState{});
  if (job->IsFull()) BeginJobs();
  job->TellNewcomer(hello.rank, now_, servers_.size(), outputs_);
}

void Coordinator::Impl::OnWorker(Job& job, uint32_t rank, const MemberBody& body) {
  if (const auto* beat = std::get_if<Heartbeat>(&body))
    job.OnHeartbeat(rank, *beat, now_);
  if (const auto* report = std::get_if<LossReport>(&body)) job.OnLoss(*report);
  if (const auto* barrier = std::get_if<BarrierEntered>(&body)) {
    job.OnBarrier(rank, barrier->barrier, outputs_);
  }
  if (std::holds_alternative<Leave>(body)) job.OnLeave(rank, outputs_);
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
  for (const auto& [name, job] : jobs_) job->Tick(now_, servers_.size(), outputs_);
  ForgetFinishedJobs();
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

void Coordinator::Impl::ForgetUnusedNames() {
  counters_.epochs.Prune(kMaxUnusedNames + jobs_.size(), [this](const std::string& name) {
    return jobs_.contains(name);
  });
  server_incarnations_.Prune(
      kMaxUnusedNames + servers_.size(), [this](const std::string& name) {
        return std::ranges::any_of(
            servers_, [&](const auto& server) { return server.second.name == name; });
      });
}

void Coordinator::Impl::OnUpdate(const UpdateJob& update) {
  const auto job = jobs_.find(update.job);
  if (job == jobs_.end() || job->second->IsOver()) {
    std::vector<std::string_view> names;
    for (const auto& [name, one] : jobs_) {
      if (!one->IsOver()) names.push_back(name);
    }
    // The distance to a very long name takes long.
    const std::string asked = Printable(update.job, kMaxJobNameBytes);
    const std::string nearest(NearestName(asked, names));
    outputs_.push_back(UpdateAnswer{absl::NotFoundError(absl::StrCat(
        "no job '", asked, "' is running",
        nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?")))});
    return;
  }
  const absl::StatusOr<uint64_t> epoch = job->second->Update(update, outputs_);
  outputs_.push_back(UpdateAnswer{epoch.status(), epoch.ok() ? *epoch : 0});
}

// ---- State and status ----

std::string Coordinator::Impl::State() {
  ForgetUnusedNames();
  return nlohmann::json{{"version", kStateVersion},
                        {"next_job", counters_.next_job},
                        {"next_incarnation", counters_.next_incarnation},
                        {"next_server", next_server_},
                        {"epochs", counters_.epochs.values()},
                        {"epoch_floor", counters_.epochs.floor()},
                        {"server_incarnations", server_incarnations_.values()},
                        {"server_incarnation_floor", server_incarnations_.floor()}}
      .dump();
}

absl::Status Coordinator::Impl::Restore(const std::string& text) {
  const nlohmann::json state = nlohmann::json::parse(text, nullptr, false);
  const auto unreadable = [](absl::string_view what) {
    return WithFailure(
        absl::DataLossError(absl::StrCat("the coordinator's stored state ", what,
                                         "; restore it from a copy, or choose an empty "
                                         "--state-dir")),
        Failure::kStateUnusable);
  };
  if (!state.is_object()) return unreadable("cannot be read");
  if (state.value("version", 0) != kStateVersion)
    return unreadable("is of another version");
  const auto number = [&](const char* key) {
    const auto found = state.find(key);
    return found != state.end() && found->is_number_unsigned();
  };
  const auto map = [&](const char* key) {
    const auto found = state.find(key);
    return found != state.end() && found->is_object() &&
           std::all_of(found->begin(), found->end(),
                       [](const auto& value) { return value.is_number_unsigned(); });
  };
  if (!number("next_job") || !number("next_incarnation") || !number("next_server") ||
      !map("epochs") || !map("server_incarnations")) {
    return unreadable("lacks a field");
  }
  counters_.next_job = state["next_job"];
  counters_.next_incarnation = state["next_incarnation"];
  next_server_ = state["next_server"];
  // Older states have no floors.
  const auto numbers = [&](const char* key, const char* floor) {
    return GrowingNumbers(state[key].get<std::map<std::string, uint64_t>>(),
                          number(floor) ? state[floor].get<uint64_t>() : 0);
  };
  counters_.epochs = numbers("epochs", "epoch_floor");
  server_incarnations_ = numbers("server_incarnations", "server_incarnation_floor");
  return absl::OkStatus();
}

CoordinatorView Coordinator::Impl::View(absl::Duration now) const {
  CoordinatorView view;
  for (const auto& [number, server] : servers_) {
    view.servers.push_back(
        {.server = number,
         .incarnation = server.incarnation,
         .name = server.name,
         .lanes = server.lanes,
         .shards = static_cast<uint32_t>(server.shard_addresses.size()),
         .bytes = server.bytes,
         .memory_budget_bytes = server.memory_bytes,
         .memory_placed_bytes = MemoryOf(server).placed_bytes,
         .heartbeat_age = now - server.heard_at});
  }
  for (const auto& [name, job] : jobs_) view.jobs.push_back(job->View(now));
  return view;
}

Coordinator::Coordinator(const CoordinatorOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
Coordinator::~Coordinator() = default;

absl::Status Coordinator::Restore(const std::string& state) {
  return impl_->Restore(state);
}
CoordinatorOutputs Coordinator::Apply(const CoordinatorInput& input, absl::Duration now) {
  return impl_->Apply(input, now);
}
CoordinatorView Coordinator::View(absl::Duration now) const { return impl_->View(now); }

}  // namespace syncline
