// How a job ends standstills: members that hold up the others, servers that do not
// answer, and ranks that die again and again.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/coordinator/job.h"
#include "server/coordinator/member_names.h"

namespace syncline {
namespace {

constexpr absl::Duration kSayOutsideEvery = absl::Seconds(1);

// Rate at which a busy host takes and zeroes memory for blocks, at worst. 2^25 FP32
// values and their AdamW state are 400 MB.
constexpr double kElementsPlacedPerSecond = 1 << 25;
// Rate at which a checkpoint is read from storage that is slow or shared by all servers.
constexpr double kBytesLoadedPerSecond = 20e6;

std::vector<StallMember> ToStall(const std::vector<MemberRecord>& members,
                                 const Workers& workers) {
  std::vector<StallMember> all;
  bool seeder_found = false;
  for (const MemberRecord& member : members) {
    const bool seeds = member.first_step == 0 && !seeder_found;
    seeder_found = seeder_found || seeds;
    const JobWorker* worker = workers.Find(member.rank, member.incarnation);
    if (worker == nullptr) continue;
    all.push_back({.rank = member.rank,
                   .step = worker->beat.step,
                   .bytes = worker->beat.bytes,
                   .waits = worker->beat.waiting,
                   .in_barrier = worker->barrier.has_value(),
                   .seeds = seeds});
  }
  return all;
}

}  // namespace

void Job::OnServerBeat(uint32_t server, const Heartbeat& beat,
                       const JobProgress& progress) {
  if (!places_.Of(server) || progress.members.size() > kMaxWorkers) return;
  stall_.Said(server, beat, progress);
  server_phases_[server] = progress.phases;
  records_.erase(server);
  if (progress.records) records_[server] = *progress.records;
}

// ---- Members that stand still ----

void Job::EndStalls(absl::Duration now) {
  // Members that may still return hold up the others for a bounded time only.
  if (phase_ != Phase::kRunning || homecoming_ || LacksServers()) return;
  std::vector<StallServer> servers;
  for (size_t place = 0; place < places_.size(); ++place) {
    const JobServer& server = places_[place];
    if (places_.placement()->serves[place])
      servers.push_back({server.server, server.name});
  }
  const StallVerdict verdict = stall_.Look(now, ToStall(committed_, workers_), servers);
  SayStalls(now);
  if (!verdict.failure.empty()) return Fail(verdict.failure);
  for (const Drop& drop : verdict.drops) {
    DropWorker(drop.rank, drop.reason, Readmission::Cause::kStoodStill);
  }
  if (verdict.drops.empty()) return;
  MaybeReleaseBarrier();
  MaybeChangeEpoch();
}

// ---- Ranks that die over and over ----

Readmission::Figures Job::FiguresOf(uint32_t rank) const {
  return {.contributed = stall_.contributed(rank),
          .completed = stall_.completed(),
          .trained = stall_.trained()};
}

void Job::NoteLoss(uint32_t rank, Readmission::Cause cause) {
  if (phase_ != Phase::kRunning || workers_.at(rank).outside) return;
  readmission_.Lost(rank, cause, FiguresOf(rank));
}

// While members may still return after a restart, a newcomer waits outside: only they
// know how many barriers are over, and it would pass its first one alone. If nobody is
// inside, a rank that died often has nobody to hold up, and may join.
bool Job::MayJoin(uint32_t rank, const std::string& name, absl::Duration now) const {
  if (workers_.awaited() > 0) return false;
  return !workers_.HasInsiders() || (readmission_.MayJoin(rank, FiguresOf(rank)) &&
                                     exclusions_.MayJoin(rank, name, now));
}

std::string Job::WhyOutside(uint32_t rank, absl::Duration now) const {
  if (workers_.awaited() > 0) return WhoIsAwaited();
  const bool is_excluded = !exclusions_.MayJoin(rank, workers_.at(rank).name, now);
  return is_excluded ? exclusions_.Why(rank, workers_.at(rank).name, now)
                     : readmission_.Why(rank);
}

// ---- Ranks that hold up the others ----

absl::Status Job::Exclude(const ExcludeWorker& exclude, absl::Duration now) {
  SYNCLINE_RETURN_IF_ERROR(CheckRuns());
  const JobWorker* worker = workers_.Find(exclude.rank);
  if (worker == nullptr || worker->outside || worker->is_awaited) {
    return absl::NotFoundError(
        absl::StrCat("job '", spec_.name, "' has no member of rank ", exclude.rank));
  }
  if (exclude.incarnation && *exclude.incarnation != worker->incarnation) {
    return absl::NotFoundError(
        absl::StrCat(workers_.Named(exclude.rank), " is another process"));
  }
  std::set<std::string> serving;
  for (const JobServer& server : places_) serving.insert(HostOfMember(server.host));
  SYNCLINE_RETURN_IF_ERROR(workers_.CheckMayLack(exclude.rank, spec_.name, serving));
  const std::string who = workers_.Named(exclude.rank);
  // The worker may return, but the job does not wait for it: its launcher may have ended.
  stops_.Forget(exclude.rank);
  exclusions_.Add(exclude.rank, worker->name, now);
  Store();  // before anybody hears of it
  const absl::Duration wait = exclusions_.Wait(exclude.rank, worker->name);
  outbox_.Close(
      worker->connection,
      WithFailure(
          absl::AbortedError(absl::StrCat(
              who, " was excluded from job '", spec_.name, "': ", exclude.why,
              "; the others go on. Connect again to rejoin: from another host at once, "
              "from this one in ",
              absl::FormatDuration(wait))),
          Failure::kExcluded));
  Log(absl::StrCat("excludes ", who, ": ", exclude.why), LogReason::Level::kWarning);
  Say({.kind = EventKind::kAnswer,
       .what = absl::StrCat("excludes ", who, ": ", exclude.why)});
  Forget(exclude.rank, EpochCause::kAnswer,
         absl::StrCat(who, " was excluded: ", exclude.why));
  MaybeReleaseBarrier();
  MaybeChangeEpoch();
  return absl::OkStatus();
}

void Job::LetIn(absl::Duration now) {
  exclusions_.Tick(now);
  const bool nobody_inside = !workers_.HasInsiders();
  const bool says = now - last_outside_said_ >= kSayOutsideEvery;
  if (says) last_outside_said_ = now;
  for (auto& [rank, worker] : workers_) {
    if (!worker.outside) continue;
    if (nobody_inside || MayJoin(rank, worker.name, now)) {
      worker.outside = false;
      const std::string what = absl::StrCat(workers_.Named(rank), " joins");
      change_reasons_.Add(EpochCause::kJoin, what);
      Say({.kind = EventKind::kJoin, .what = what + " after it had waited outside"});
    } else if (says) {
      outbox_.Send(worker.connection, Waiting{WhyOutside(rank, now)});
    }
  }
  MaybeChangeEpoch();
}

// ---- Servers that do not answer ----

// Returns what servers were told to do and have not done, and fills in those servers.
// Empty: nothing.
std::string Job::UnansweredQuestion(std::set<uint32_t>& servers) const {
  if (phase_ == Phase::kConfiguring) {
    servers = unconfigured_;
    return "create the job's blocks";
  }
  if (!change_) return "";
  servers = change_->unanswered();
  return change_->Question();
}

void Job::AwaitAnswers(absl::Duration now) {
  if (phase_ == Phase::kOver || LacksServers()) return answers_.Pause(now);
  std::set<uint32_t> missing;
  const std::string what = UnansweredQuestion(missing);
  const std::string question =
      what.empty() ? "" : absl::StrCat(what, " ", missing.size());
  const absl::Duration unanswered_for = answers_.Look(
      question, stall_.backups_move(), now, options_.timeouts.heartbeat_interval);
  absl::Duration limit = options_.timeouts.no_progress;
  if (phase_ == Phase::kConfiguring) {
    const auto elements = static_cast<double>(declared_->elements);
    limit += absl::Seconds(elements / kElementsPlacedPerSecond);
    if (beginning_.resumes) {
      const auto bytes = static_cast<double>(beginning_.from.bytes());
      limit += absl::Seconds(bytes / kBytesLoadedPerSecond);
    }
  }
  if (missing.empty() || unanswered_for < limit) return;
  const std::optional<size_t> place = places_.Of(*missing.begin());
  Fail(absl::StrCat("server ", *missing.begin(), " (",
                    place ? places_[*place].name : "gone", ") did not ", what, " within ",
                    absl::FormatDuration(absl::Trunc(limit, absl::Seconds(1))),
                    missing.size() == 1 ? ""
                                        : absl::StrCat("; ", missing.size() - 1,
                                                       " others did not either")));
}

}  // namespace syncline
