// How workers get to their jobs: from a hello to a known declaration, and from there to a
// job that is placed on servers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/coordinator/admission.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/coordinator/member_names.h"

namespace syncline {
namespace {

absl::Status CheckWorkerNames(const WorkerHello& hello) {
  SYNCLINE_RETURN_IF_ERROR(CheckName("a job's name", hello.job, kMaxJobNameBytes));
  SYNCLINE_RETURN_IF_ERROR(
      CheckUnlessEmpty("a worker's name", hello.name, kMaxMemberNameBytes));
  return CheckUnlessEmpty("a run id", hello.run_id, kMaxJobNameBytes);
}

// A job must not wait for servers in a run that was started without any.
absl::Status NoServers(const std::string& job) {
  return WithFailure(absl::FailedPreconditionError(absl::StrCat(
                         "job '", job,
                         "' needs servers for its weights, but this run has none, "
                         "because it was started with --servers 0: start it with "
                         "--servers 1, or use only collectives")),
                     Failure::kJobRefused);
}

}  // namespace

ServerMemory Coordinator::Impl::MemoryOf(const Server& server) const {
  ServerMemory memory = {.name = server.name,
                         .shards = static_cast<uint32_t>(server.shard_addresses.size()),
                         .budget_bytes = server.memory_bytes};
  for (const auto& [name, job] : jobs_) memory.placed_bytes += job->BytesOn(server.name);
  return memory;
}

// Counts the servers that may serve new jobs: no stand-ins, and none that is to end.
size_t Coordinator::Impl::ServersAttached() const {
  return static_cast<size_t>(std::ranges::count_if(
      servers_, [](const auto& entry) { return entry.second.TakesPlaces(); }));
}

bool Coordinator::Impl::ServersAreThere() const {
  const size_t attached = ServersAttached();
  return attached > 0 && attached >= options_.expected_servers;
}

std::vector<uint32_t> Coordinator::Impl::ShardCounts() const {
  std::vector<uint32_t> counts;
  counts.reserve(servers_.size());
  for (const auto& [number, server] : servers_) {
    if (!server.TakesPlaces()) continue;
    counts.push_back(static_cast<uint32_t>(server.shard_addresses.size()));
  }
  return counts;
}

// Returns whether the job fits on the servers; empty while its placement is computed. A
// job that still waits for servers is not refused for the memory of those that are there.
std::optional<absl::Status> Coordinator::Impl::Fits(
    const std::shared_ptr<const DeclaredJob>& declared) {
  if (!ServersAreThere()) return absl::OkStatus();
  const auto placement = declarations_.PlacementOf(declared, ShardCounts());
  if (!placement.ok()) return placement.status();
  if (*placement == nullptr) return std::nullopt;
  std::vector<ServerMemory> memory;
  for (const auto& [number, server] : servers_) {
    if (server.TakesPlaces()) memory.push_back(MemoryOf(server));
  }
  return CheckPlacement(declared->spec.name, **placement, memory);
}

// Called after hellos and after the results that they ordered, since only these can
// complete what a job waits for. The list of servers with all their addresses is made
// only when a job is full.
void Coordinator::Impl::BeginJobs() {
  if (!ServersAreThere()) return;
  for (const auto& [name, job] : jobs_) {
    if (!job->IsFull() || !job->KnowsBeginning()) continue;
    const auto placement = declarations_.PlacementOf(job->declared(), ShardCounts());
    if (placement.ok() && *placement == nullptr) continue;  // not computed yet
    // A job that begins leaves less memory to the next.
    job->Begin(AttachedServers(), placement);
  }
}

// ---- Newcomers ----

void Coordinator::Impl::OnWorkerHello(ConnectionId connection, const WorkerHello& hello) {
  if (const absl::Status named = CheckWorkerNames(hello); !named.ok()) {
    return Refuse(connection, named);
  }
  if (hello.member) return Return(connection, hello);
  if (options_.expected_servers == 0 && ServersAttached() == 0) {
    return Refuse(connection, NoServers(hello.job));
  }
  const absl::Status added = declarations_.Add(connection, hello, now_);
  if (!added.ok()) return Refuse(connection, added);
  speakers_[connection] = {.kind = Speaker::kNewcomer};
  MaybeAdmit(connection);
}

void Coordinator::Impl::OnPrepared(const Prepared& prepared) {
  if (const auto* read = std::get_if<DeclarationRead>(&prepared)) {
    declarations_.OnRead(*read, now_);
    MaybeAdmitAll(read->digest);
  }
  if (const auto* compared = std::get_if<JobsCompared>(&prepared)) {
    declarations_.OnCompared(*compared);
    MaybeAdmitAll(compared->theirs);
  }
  if (const auto* placed = std::get_if<JobPlaced>(&prepared)) {
    declarations_.OnPlaced(*placed);
    MaybeAdmitAll(placed->digest);
    BeginJobs();
  }
}

void Coordinator::Impl::MaybeAdmitAll(const std::string& digest) {
  for (const ConnectionId connection : declarations_.NewcomersOf(digest)) {
    MaybeAdmit(connection);
  }
}

// Admits or refuses a newcomer if its declaration and everything else that decides is
// known. Otherwise it is looked at again when that arrives.
void Coordinator::Impl::MaybeAdmit(ConnectionId connection) {
  const WorkerHello hello = declarations_.HelloOf(connection);
  const auto declared = declarations_.Find(hello.digest);
  if (declared == nullptr) return;
  const std::optional<absl::Status> may_join = MayJoin(declared, hello);
  if (!may_join) return SayWhyItWaits(connection, hello);
  const Declarations::Newcomer newcomer = declarations_.Take(connection);
  const absl::Status admitted =
      may_join->ok() ? Admit(connection, declared, hello) : *may_join;
  if (!admitted.ok()) return Refuse(connection, admitted);
  Job& job = *jobs_.at(hello.job);
  if (newcomer.disconnected_at) job.OnDisconnected(hello.rank, *newcomer.disconnected_at);
  if (job.IsFull()) BeginJobs();
  job.TellNewcomer(hello.rank, now_, ServersAttached());
}

void Coordinator::Impl::SayWhyItWaits(ConnectionId connection, const WorkerHello& hello) {
  const auto job = jobs_.find(hello.job);
  const bool is_there = job != jobs_.end() && !job->second->IsOver();
  declarations_.Waits(connection, is_there ? job->second->WhyWait(hello, now_) : "");
}

// Returns whether the worker may join; empty while that is not known, or while it has to
// wait.
std::optional<absl::Status> Coordinator::Impl::MayJoin(
    const std::shared_ptr<const DeclaredJob>& declared, const WorkerHello& hello) {
  const auto known = jobs_.find(hello.job);
  if (known != jobs_.end()) known->second->EndIfAbandoned(hello.run_id);
  if (known == jobs_.end()) return Fits(declared);
  if (known->second->IsOver()) {
    SYNCLINE_RETURN_IF_ERROR(known->second->CheckNotTooLate(hello));
    return Fits(declared);
  }
  if (const absl::Status same = known->second->CheckRun(hello, now_); !same.ok())
    return same;
  if (!known->second->WhyWait(hello, now_).empty()) return std::nullopt;
  return declarations_.SameJob(known->second->declared(), declared);
}

absl::Status Coordinator::Impl::Admit(ConnectionId connection,
                                      const std::shared_ptr<const DeclaredJob>& declared,
                                      const WorkerHello& hello) {
  const auto known = jobs_.find(hello.job);
  const bool is_new = known == jobs_.end() || known->second->IsOver();
  // A job that is over stays known until a worker is admitted to the new one.
  std::unique_ptr<Job> made;
  if (is_new) {
    made = std::make_unique<Job>(counters_.next_job++, declared, hello.run_id,
                                 JobContext{options_, counters_, outbox_});
    if (known != jobs_.end()) made->Follow(*known->second);
  }
  Job& joined = is_new ? *made : *known->second;
  SYNCLINE_RETURN_IF_ERROR(joined.Admit(connection, hello, now_));
  const Job* const job = &joined;
  if (is_new) jobs_[hello.job] = std::move(made);
  speakers_[connection] = {
      .kind = Speaker::kWorker, .job = job->id(), .rank = hello.rank};
  if (is_new) outbox_.Persist();
  return absl::OkStatus();
}

}  // namespace syncline
