#include "server/coordinator/declarations.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/byte_size.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/refusal.h"

namespace syncline {
namespace {

constexpr absl::Duration kSayWaitingEvery = absl::Seconds(1);

constexpr size_t kMaxWhyBytes = 500;

// Emits an event of the cluster, not of the job, which does not know the worker and may
// not exist.
void SayItGaveUp(const WorkerHello& hello, const Leave& leave, Outbox& outbox) {
  if (leave.why.empty()) return;
  const std::string what =
      absl::StrCat("worker ", hello.rank, " (", hello.name,
                   ") gave up before it became a member of job '", hello.job,
                   "': ", Printable(leave.why, kMaxWhyBytes));
  outbox.Log(what, LogReason::Level::kWarning);
  outbox.Add(CoordinatorEvent{.kind = EventKind::kLeave, .what = what});
}

absl::Status Misannounced(const std::string& announced, const std::string& declared) {
  return absl::InvalidArgumentError(absl::StrCat("the worker asked to join job '",
                                                 announced, "', but declared job '",
                                                 declared, "'"));
}

}  // namespace

// ---- Newcomers ----

absl::Status Declarations::Add(ConnectionId connection, const WorkerHello& hello,
                               absl::Duration now) {
  if (hello.digest.size() != kDigestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the worker announced a job by a digest of ", hello.digest.size(),
                     " bytes, but a SHA-256 digest has ", kDigestBytes));
  }
  if (hello.job_bytes == 0 || hello.job_bytes > kMaxDeclarationBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the declaration of job '", hello.job, "' has ", hello.job_bytes,
                     " bytes, allowed are 1 to ", kMaxDeclarationBytes,
                     ": a job may have about a million tensors"));
  }
  if (newcomers_.size() >= limits_.newcomers) {
    return WithFailure(absl::ResourceExhaustedError(
                           absl::StrCat(newcomers_.size(),
                                        " workers are waiting for their jobs already, "
                                        "which is the limit; try again")),
                       Failure::kRetryable);
  }
  Entry& entry = entries_[hello.digest];
  if (entry.job != nullptr && entry.job->spec.name != hello.job) {
    return Misannounced(hello.job, entry.job->spec.name);
  }
  newcomers_[connection] = {.hello = hello, .heard_at = now, .said_at = now};
  entry.newcomers.insert(connection);
  Ask(hello.digest, entry, now);
  return absl::OkStatus();
}

Declarations::Newcomer Declarations::Take(ConnectionId connection) {
  const auto found = newcomers_.find(connection);
  SYNCLINE_CHECK(found != newcomers_.end());
  Newcomer newcomer = std::move(found->second);
  newcomers_.erase(found);
  entries_.at(newcomer.hello.digest).newcomers.erase(connection);
  return newcomer;
}

void Declarations::Refuse(ConnectionId connection, const absl::Status& status) {
  Take(connection);
  RefuseMember(connection, status, outbox_);
}

void Declarations::RefuseAll(const std::string& digest, const absl::Status& status) {
  for (const ConnectionId connection : NewcomersOf(digest)) {
    Refuse(connection, status);
  }
}

void Declarations::OnNewcomer(ConnectionId connection, const MemberBody& body,
                              absl::Duration now) {
  Newcomer& newcomer = newcomers_.at(connection);
  if (std::holds_alternative<Disconnected>(body)) {
    newcomer.disconnected_at = now;
    return;
  }
  newcomer.heard_at = now;
  if (std::holds_alternative<Returned>(body)) newcomer.disconnected_at.reset();
  if (const auto* leave = std::get_if<Leave>(&body)) {
    SayItGaveUp(newcomer.hello, *leave, outbox_);
    Take(connection);
    outbox_.Close(connection, absl::OkStatus());
  }
  if (const auto* declaration = std::get_if<JobDeclaration>(&body)) {
    Deliver(connection, *declaration);
  }
}

std::vector<ConnectionId> Declarations::NewcomersOf(const std::string& digest) const {
  const auto entry = entries_.find(digest);
  if (entry == entries_.end()) return {};
  return {entry->second.newcomers.begin(), entry->second.newcomers.end()};
}

void Declarations::Waits(ConnectionId connection, const std::string& reason) {
  std::string& known = newcomers_.at(connection).waits_for;
  if (known == reason) return;
  known = reason;
  if (!known.empty()) outbox_.Send(connection, Waiting{known});
}

std::vector<ConnectionId> Declarations::WhoWaits() const {
  std::vector<ConnectionId> all;
  for (const auto& [connection, newcomer] : newcomers_) {
    if (!newcomer.waits_for.empty()) all.push_back(connection);
  }
  return all;
}

// ---- Declarations ----

std::shared_ptr<const DeclaredJob> Declarations::Find(const std::string& digest) const {
  const auto entry = entries_.find(digest);
  return entry == entries_.end() ? nullptr : entry->second.job;
}

void Declarations::StopAsking(Entry& entry) {
  if (entry.asked_bytes > 0) UnderWay(entry.asked_bytes) -= entry.asked_bytes;
  entry.asked_bytes = 0;
}

// Asks the first newcomer that has not been asked, unless the last one that was asked has
// time left, or too many bytes are under way.
void Declarations::Ask(const std::string& digest, Entry& entry, absl::Duration now) {
  if (entry.job != nullptr || entry.is_being_read) return;
  if (entry.asked_bytes > 0) {
    if (now - entry.asked_at < timeouts_.reconnect_grace) return;
    StopAsking(entry);
  }
  for (const ConnectionId connection : entry.newcomers) {
    Newcomer& newcomer = newcomers_.at(connection);
    if (newcomer.asked_at || newcomer.disconnected_at) continue;
    const uint64_t bytes = newcomer.hello.job_bytes;
    if (UnderWay(bytes) + bytes > limits_.under_way_bytes) return;
    UnderWay(bytes) += bytes;
    entry.asked_bytes = bytes;
    entry.asked_at = now;
    newcomer.asked_at = now;
    outbox_.Send(connection, DescribeJob{digest});
    return;
  }
}

void Declarations::AskWhereNeeded(absl::Duration now) {
  for (auto& [digest, entry] : entries_) Ask(digest, entry, now);
}

// A slow newcomer may deliver after another one has, or after its time was over.
void Declarations::Deliver(ConnectionId connection, const JobDeclaration& declaration) {
  const Newcomer& newcomer = newcomers_.at(connection);
  const uint64_t bytes = declaration.bytes->size();
  if (!newcomer.asked_at || bytes != newcomer.hello.job_bytes) {
    return Refuse(
        connection,
        absl::InvalidArgumentError(absl::StrCat(
            "the worker sent a job of ", bytes, " bytes, but ",
            newcomer.asked_at ? absl::StrCat("had announced ", newcomer.hello.job_bytes)
                              : "was not asked for one")));
  }
  Entry& entry = entries_.at(newcomer.hello.digest);
  if (entry.job != nullptr || entry.is_being_read) return;
  StopAsking(entry);
  UnderWay(bytes) += bytes;
  entry.is_being_read = true;
  outbox_.Add(Prepare{ReadDeclaration{
      .from = connection,
      .announced = {.digest = newcomer.hello.digest, .bytes = declaration.bytes}}});
}

void Declarations::OnRead(const DeclarationRead& read, absl::Duration now) {
  UnderWay(read.bytes) -= read.bytes;
  const auto found = entries_.find(read.digest);
  if (found != entries_.end()) {
    Entry& entry = found->second;
    entry.is_being_read = false;
    if (!read.delivery.ok()) {
      if (newcomers_.contains(read.from)) Refuse(read.from, read.delivery);
    } else if (!read.job.ok()) {
      RefuseAll(read.digest, read.job.status());
    } else if (kept_bytes_ + read.bytes > limits_.kept_bytes) {
      RefuseAll(read.digest, WithFailure(absl::ResourceExhaustedError(absl::StrCat(
                                             "the declarations of all jobs take ",
                                             FormatByteSize(kept_bytes_),
                                             " already, which leaves no room for this "
                                             "one; wait for the end of another job")),
                                         Failure::kJobRefused));
    } else {
      kept_bytes_ += read.bytes;
      entry.job = *read.job;
      for (const ConnectionId connection : NewcomersOf(read.digest)) {
        const std::string announced = HelloOf(connection).job;
        if (announced == entry.job->spec.name) continue;
        Refuse(connection, Misannounced(announced, entry.job->spec.name));
      }
    }
  }
  AskWhereNeeded(now);
}

// ---- What follows from them ----

std::optional<absl::Status> Declarations::SameJob(
    const std::shared_ptr<const DeclaredJob>& ours,
    const std::shared_ptr<const DeclaredJob>& theirs) {
  const std::string& digest = ours->declaration.digest;
  if (digest == theirs->declaration.digest) return absl::OkStatus();
  Entry& entry = entries_.at(theirs->declaration.digest);
  const auto [same, is_new] = entry.same.try_emplace(digest);
  if (is_new) outbox_.Add(Prepare{CompareJobs{.ours = ours, .theirs = theirs}});
  return same->second;
}

void Declarations::OnCompared(const JobsCompared& compared) {
  const auto entry = entries_.find(compared.theirs);
  if (entry != entries_.end()) entry->second.same[compared.ours] = compared.same;
}

absl::StatusOr<std::shared_ptr<const JobPlacement>> Declarations::PlacementOf(
    const std::shared_ptr<const DeclaredJob>& job, const std::vector<uint32_t>& shards) {
  Entry& entry = entries_.at(job->declaration.digest);
  if (entry.placed_on != shards) {
    entry.placed_on = shards;
    entry.placement = nullptr;
    outbox_.Add(Prepare{PlaceBlocksOf{.job = job, .shards = shards}});
  }
  return entry.placement;
}

void Declarations::OnPlaced(const JobPlaced& placed) {
  const auto entry = entries_.find(placed.digest);
  if (entry == entries_.end() || entry->second.placed_on != placed.shards) return;
  entry->second.placement = placed.placement;
}

// ---- Time ----

void Declarations::Tick(absl::Duration now, const std::set<std::string>& used) {
  DropSilent(now);
  AskWhereNeeded(now);
  SayThatTheyWait(now);
  ForgetUnused(used);
}

void Declarations::DropSilent(absl::Duration now) {
  std::vector<Lease> leases;
  std::vector<ConnectionId> connections;
  std::map<ConnectionId, std::string> dropped;
  for (const auto& [connection, newcomer] : newcomers_) {
    leases.push_back({.rank = static_cast<uint32_t>(connections.size()),
                      .connected = !newcomer.disconnected_at,
                      .heard_at = newcomer.heard_at,
                      .disconnected_at = newcomer.disconnected_at.value_or(now)});
    connections.push_back(connection);
    const bool is_known = entries_.at(newcomer.hello.digest).job != nullptr ||
                          entries_.at(newcomer.hello.digest).is_being_read;
    if (!is_known && newcomer.asked_at &&
        now - *newcomer.asked_at >= timeouts_.failure_timeout) {
      dropped[connection] =
          absl::StrCat("it did not send the declaration of job '", newcomer.hello.job,
                       "' within ", absl::FormatDuration(timeouts_.failure_timeout));
    }
  }
  for (const Drop& drop : ComputeDrops(now, leases, timeouts_)) {
    dropped[connections[drop.rank]] = drop.reason;
  }
  for (const auto& [connection, reason] : dropped) {
    Refuse(connection, absl::AbortedError(absl::StrCat(
                           "worker ", HelloOf(connection).rank, " was dropped: ", reason,
                           "; connect again to rejoin")));
  }
}

void Declarations::SayThatTheyWait(absl::Duration now) {
  for (auto& [connection, newcomer] : newcomers_) {
    if (now - newcomer.said_at < kSayWaitingEvery) continue;
    newcomer.said_at = now;
    if (!newcomer.waits_for.empty()) {
      outbox_.Send(connection, Waiting{newcomer.waits_for});
      continue;
    }
    outbox_.Send(connection, Waiting{absl::StrCat(
                                 "the coordinator is reading the declaration of job '",
                                 newcomer.hello.job, "' (",
                                 FormatByteSize(newcomer.hello.job_bytes), ")")});
  }
}

void Declarations::ForgetUnused(const std::set<std::string>& used) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (!entry->second.newcomers.empty() || entry->second.is_being_read ||
        used.contains(entry->first)) {
      ++entry;
      continue;
    }
    StopAsking(entry->second);
    if (entry->second.job != nullptr) kept_bytes_ -= entry->second.job->bytes();
    entry = entries_.erase(entry);
  }
}

}  // namespace syncline
