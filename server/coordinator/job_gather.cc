// How a job begins: it gathers its workers, chooses shards for its blocks, and has its
// servers create them.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/coordinator/admission.h"
#include "server/coordinator/job.h"

namespace syncline {
namespace {

constexpr absl::Duration kSayWaitingEvery = absl::Seconds(1);
constexpr size_t kMissingRanksShown = 8;

absl::Status Refused(const std::string& what) {
  return WithFailure(absl::FailedPreconditionError(what), Failure::kJobRefused);
}

}  // namespace

bool Job::IsOfAnotherRun(const WorkerHello& hello) const {
  return !run_id_.empty() && !hello.run_id.empty() && run_id_ != hello.run_id;
}

absl::Status Job::CheckRun(const WorkerHello& hello, absl::Duration now) const {
  if (!IsOfAnotherRun(hello)) return absl::OkStatus();
  const bool lives = std::ranges::any_of(workers_, [&](const auto& entry) {
    return !workers_.MayBeDead(entry.second, now) && !stops_.contains(entry.first);
  });
  if (!lives) return absl::OkStatus();
  return Refused(absl::StrCat("another run of job '", spec_.name, "' is active with ",
                              workers_.size(),
                              " workers; wait for its end or choose another --job"));
}

absl::Status Job::CheckNotTooLate(const WorkerHello& hello) const {
  const bool is_finished = IsOver() && !failed_ && !was_stopped_;
  const bool is_too_late = hello.rejoins && is_finished && !IsOfAnotherRun(hello) &&
                           lost_.contains(hello.rank);
  if (!is_too_late) return absl::OkStatus();
  return WithFailure(
      absl::FailedPreconditionError(absl::StrCat(
          "job '", spec_.name, "' is over: the other workers finished at step ",
          furthest_step_, " while worker ", hello.rank,
          " was away; to start the job over, start all workers")),
      Failure::kJobOver);
}

std::string Job::WhyWait(const WorkerHello& hello, absl::Duration now) const {
  if (IsEnding()) {
    return absl::StrCat("waits for the end of the last run of job '", spec_.name,
                        "': its last step is being saved");
  }
  const bool is_other = IsOfAnotherRun(hello);
  if (is_other && !stops_.empty()) {
    return absl::StrCat("waits for the end of the last run of job '", spec_.name,
                        "', which is being stopped: ", stops_.by());
  }
  if (is_other) {
    return absl::StrCat(
        "waits for the end of the last run of job '", spec_.name,
        "': its workers vanished without leaving, and may still come back within ",
        absl::FormatDuration(TimeToReturn()));
  }
  const JobWorker* holder = workers_.Find(hello.rank);
  if (holder == nullptr || !holder->connected) return "";
  if (stops_.contains(hello.rank)) {
    return absl::StrCat("waits for rank ", hello.rank, " of job '", spec_.name,
                        "': it is held by ", holder->name,
                        ", which is being stopped: ", stops_.at(hello.rank).by);
  }
  if (!workers_.MayBeDead(*holder, now)) return "";
  return absl::StrCat("waits for rank ", hello.rank, " of job '", spec_.name,
                      "': it is held by ", holder->name,
                      ", which is silent, but not given up yet");
}

absl::Status Job::Admit(ConnectionId connection, const WorkerHello& hello,
                        absl::Duration now) {
  if (hello.rank >= kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", hello.rank, ", allowed are 0 to ", kMaxWorkers - 1));
  }
  const bool began = phase_ != Phase::kGathering;
  if (!began && hello.rank >= spec_.workers) {
    return Refused(absl::StrCat("job '", spec_.name, "' begins with ranks 0 to ",
                                spec_.workers - 1, "; rank ", hello.rank,
                                " may join once it runs"));
  }
  if (const JobWorker* holder = workers_.Find(hello.rank)) {
    if (holder->connected) {
      return Refused(absl::StrCat("rank ", hello.rank, " of job '", spec_.name,
                                  "' is held by ", holder->name,
                                  "; is another job of this name running?"));
    }
    NoteLoss(hello.rank, Readmission::Cause::kDied);
    const std::string what =
        absl::StrCat(workers_.Named(hello.rank), " came back as a new process");
    outbox_.Close(holder->connection, absl::AbortedError(what));
    Forget(hello.rank, EpochCause::kDeath, what);
    Report(EventKind::kDeath, what, LogReason::Level::kWarning);
  }
  lost_.erase(hello.rank);
  if (workers_.empty() && !began) gathering_since_ = now;
  const bool may_join = MayJoin(hello.rank, hello.name, now);
  last_outside_said_ = -absl::InfiniteDuration();
  workers_.Add(hello.rank, {.connection = connection,
                            .incarnation = counters_.next_incarnation++,
                            .session_key = hello.session_key,
                            .key = hello.key,
                            .name = hello.name,
                            .outside = !may_join,
                            .heard_at = now});
  if (began && may_join) {
    change_reasons_.Add(EpochCause::kJoin,
                        absl::StrCat(workers_.Named(hello.rank), " joins"));
  }
  Say({.kind = EventKind::kJoin,
       .what = absl::StrCat(workers_.Named(hello.rank), " joins",
                            may_join ? "" : ", and waits outside for now")});
  MaybeChangeEpoch();
  return absl::OkStatus();
}

void Job::Begin(const std::vector<JobServer>& servers,
                const absl::StatusOr<std::shared_ptr<const JobPlacement>>& placement) {
  if (!placement.ok()) return FailWith(placement.status());
  std::vector<ServerMemory> memory;
  for (const JobServer& server : servers) memory.push_back(server.memory);
  if (spec_.HasBackups() && servers.size() < 2) {
    return FailWith(Refused(absl::StrCat(
        "job '", spec_.name, "' asks for durability=", spec_.settings.durability,
        ", but there is only one server, and no other to hold its backup; start two "
        "servers or more (--servers 2), or choose durability=disk or none")));
  }
  for (size_t i = 0; spec_.HasBackups() && i < servers.size(); ++i) {
    memory[(i + 1) % servers.size()].placed_bytes += (*placement)->server_use[i].total();
  }
  // Other jobs may have taken the memory that was free when this job was admitted.
  const absl::Status fits = CheckPlacement(spec_.name, **placement, memory);
  if (!fits.ok()) return FailWith(fits);
  phase_ = Phase::kConfiguring;
  const uint32_t run = options_.keeps_checkpoints ? beginning_.run : 0;
  const auto from =
      beginning_.resumes ? std::optional(beginning_.from.name) : std::nullopt;
  places_.Begin(servers, *placement, declared_->trained_blocks);
  quorum_.SetShards(places_.training_shards());
  for (size_t place = 0; place < places_.size(); ++place) {
    unconfigured_.insert(places_[place].server);
    outbox_.Send(places_[place].connection,
                 ConfigureJob{.job = id_,
                              .declared = declared_,
                              .placement = places_.placement(),
                              .first_shard = places_.FirstShard(place),
                              .checkpoint_run = run,
                              .resume_from = from});
  }
  journals_.Begin(places_.size());
  if (spec_.HasBackups()) backups_.Begin(places_.size());
  for (size_t place = 0; place < backups_.size(); ++place) {
    AskForBackup(place, places_[(place + 1) % places_.size()]);
  }
  reason_ = absl::StrCat("placing ", (*placement)->shard_of_block.size(), " blocks on ",
                         places_.shards(), " shards of ", places_.size(), " servers");
  Log(reason_);
}

void Job::OnConfigured(uint32_t server, uint64_t step) {
  if (const auto place = missing_.SucceededBy(server)) {
    return Succeed(*place, step);
  }
  if (const auto place = backups_.HeldBy(server)) {
    const auto& latest = backups_[*place].latest().stand_in;
    if (IsHandedOver(*place)) return FinishHandOver(step);
    if (latest && latest->server == server) OnStandInConfigured(*place);
    return;
  }
  unconfigured_.erase(server);
  MaybeRun();
}

bool Job::IsFull() const {
  return phase_ == Phase::kGathering && workers_.size() >= spec_.workers;
}

// Runs the job once all servers and all stand-ins have their shards.
void Job::MaybeRun() {
  if (phase_ != Phase::kConfiguring || !unconfigured_.empty()) return;
  if (!backups_.AreAllReady()) return;
  phase_ = Phase::kRunning;
  for (size_t place = 0; place < backups_.size(); ++place) {
    if (backups_[place].IsThere()) ConnectBackup(place);
  }
  change_reasons_ = {};
  change_reasons_.Add(EpochCause::kBegin, "the job begins");
  MaybeChangeEpoch();
  const uint64_t steps = beginning_.resumes ? beginning_.from.name.step : 0;
  if (const auto said = recoveries_.BeginAt(steps)) {
    outbox_.Log(absl::StrCat("job '", spec_.name, "' ", *said),
                LogReason::Level::kWarning);
    Say({.kind = EventKind::kRecovery, .what = *said});
  }
}

// A user who stops a run, starts from scratch, or names a checkpoint goes back on
// purpose. Only a failed run that is resumed automatically counts as a rollback.
void Job::Follow(const Job& earlier) {
  const std::string& resume = spec_.settings.resume;
  std::optional<uint64_t> steps;
  if (resume == "auto" || resume == "latest") {
    if (earlier.failed_) steps = earlier.furthest_step_;
    if (earlier.was_stopped_) steps = 0;  // a run before it that failed still counts
  }
  recoveries_.Follow(earlier.recoveries_, steps);
}

void Job::TellNewcomer(uint32_t rank, absl::Duration now, size_t servers_attached) {
  const JobWorker* worker = workers_.Find(rank);
  if (phase_ != Phase::kGathering || worker == nullptr) return;
  reason_ = WhoIsMissing(now, servers_attached);
  outbox_.Send(worker->connection, Waiting{reason_});
}

void Job::OnConfigureFailed(uint32_t server, const absl::Status& status) {
  if (const auto place = missing_.SucceededBy(server)) {
    return OnSuccessorFailed(*place, status);
  }
  const std::string why(status.message());
  if (const auto place = missing_.AwaitedOn(server)) return missing_.Fail(*place, why);
  if (const auto place = backups_.AwaitedOn(server)) {
    return GiveUpNewBackup(*place, why);
  }
  std::optional<size_t> failed = places_.Of(server);
  if (const auto place = backups_.HeldBy(server)) {
    if (backups_.IsNext(*place, server)) return GiveUpNewBackup(*place, why);
    if (IsHandedOver(*place)) return LoseBackup(*place, why);
    failed = (*place + 1) % places_.size();
  }
  if (phase_ == Phase::kOver || !failed) return;
  const char* advice =
      absl::IsDataLoss(status)
          ? "; 'syncline checkpoint list' shows earlier ones, for --resume NAME"
          : "";
  const absl::Status what(
      status.code(),
      absl::StrCat("server ", places_[*failed].name, " cannot serve job '", spec_.name,
                   "': ", std::string(status.message()), advice));
  // These errors are not retryable: the same job on the same servers would end the same
  // way.
  const bool is_of_the_job =
      absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
      absl::IsResourceExhausted(status) || absl::IsDataLoss(status);
  // Without a Failure, the link would take the status for a broken stream.
  FailWith(WithFailure(what, is_of_the_job ? Failure::kJobRefused : Failure::kRetryable));
}

void Job::SayWhoIsMissing(absl::Duration now, size_t servers_attached) {
  if (now - last_waiting_said_ < kSayWaitingEvery) return;
  last_waiting_said_ = now;
  reason_ = WhoIsMissing(now, servers_attached);
  for (const auto& [rank, worker] : workers_) {
    outbox_.Send(worker.connection, Waiting{reason_});
  }
}

std::string Job::WhoIsMissing(absl::Duration now, size_t servers_attached) const {
  const int64_t seconds = absl::ToInt64Seconds(now - gathering_since_);
  const std::string since = seconds > 0 ? absl::StrCat(", ", seconds, " s") : "";
  if (IsFull() && servers_attached >= options_.expected_servers) {
    return absl::StrCat(
        away_.empty() ? "looking for its checkpoints" : "waiting for its checkpoints: ",
        away_, since);
  }
  if (IsFull()) {
    return absl::StrCat("waiting for server ", servers_attached + 1, " of ",
                        options_.expected_servers, since,
                        "; 'syncline serve --role server' starts one");
  }
  std::string who = absl::StrCat("waiting for worker ", workers_.size() + 1, " of ",
                                 spec_.workers, since);
  if (spec_.workers - workers_.size() > kMissingRanksShown) return who;
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < spec_.workers; ++rank) {
    if (!workers_.contains(rank)) missing.push_back(rank);
  }
  absl::StrAppend(&who, " (missing: rank ", absl::StrJoin(missing, ", "), ")");
  return who;
}

}  // namespace syncline
