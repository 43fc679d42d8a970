#include "server/coordinator/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

// Limit on the message of a worker that leaves with an error.
constexpr size_t kMaxWhyBytes = 500;

JobSpec WithoutTensors(const JobSpec& spec) {
  return {.name = spec.name,
          .workers = spec.workers,
          .settings = spec.settings,
          .training = spec.training};
}

}  // namespace

Job::Job(uint32_t id, std::shared_ptr<const DeclaredJob> declared, std::string run_id,
         const JobContext& context)
    : id_(id),
      declared_(std::move(declared)),
      spec_(WithoutTensors(declared_->spec)),
      parameters_(declared_->parameters),
      run_id_(std::move(run_id)),
      outbox_(context.outbox),
      options_(context.options),
      counters_(context.counters),
      plan_(PlanOf(spec_.training)),
      decisions_(
          spec_.training, declared_->trained_blocks,
          plan_->job_reduction() == nullptr ? 0 : plan_->job_reduction()->Figures()),
      quorum_(spec_.training.sync()),
      stall_(options_.timeouts) {}

std::unique_ptr<const TrainingPlan> Job::PlanOf(const TrainingSettings& training) {
  auto plan = TrainingPlan::Create(training, {});
  SYNCLINE_CHECK(plan.ok());  // ValidateJob has made one with all tensors
  return *std::move(plan);
}

// The job stays for the status until another job takes its name. This frees what is
// large.
void Job::BeOver() {
  phase_ = Phase::kOver;
  declared_.reset();
  places_.Release();
  cuts_.Clear();
  cut_wanted_ = false;
  homecoming_.reset();
  missing_.Clear();
  hand_over_.reset();
}

void Job::ToServers(const CoordinatorBody& body) const {
  for (size_t place = 0; place < places_.size(); ++place) {
    if (IsHere(place)) outbox_.Send(places_[place].connection, body);
  }
}

// ---- Workers speak, wait and go ----

void Job::OnHeartbeat(uint32_t rank, const Heartbeat& beat, absl::Duration now) {
  workers_.Hear(rank, beat, now);
  furthest_step_ = std::max(furthest_step_, beat.step);
  SayChoice(rank, beat.compression.choice);
}

void Job::OnLeave(uint32_t rank, const Leave& leave) {
  outbox_.Close(workers_.at(rank).connection, absl::OkStatus());
  std::string what = absl::StrCat(workers_.Named(rank), " left");
  if (!leave.why.empty()) {
    absl::StrAppend(&what, " with an error: ", Printable(leave.why, kMaxWhyBytes));
    Log(what, LogReason::Level::kWarning);
  }
  Forget(rank, EpochCause::kLeave, what);
  Say({.kind = EventKind::kLeave, .what = what});
  if (workers_.empty()) return EndInOrder();
  MaybeReleaseBarrier();
  MaybeChangeEpoch();
}

void Job::OnDisconnected(uint32_t rank, absl::Duration now) {
  JobWorker& worker = workers_.at(rank);
  worker.connected = false;
  worker.disconnected_at = now;
}

void Job::OnReturned(uint32_t rank, absl::Duration now) {
  JobWorker& worker = workers_.at(rank);
  worker.connected = true;
  worker.heard_at = now;
}

void Job::EndIfAbandoned(const std::string& run_id) {
  const bool anyone_is_there =
      std::any_of(workers_.begin(), workers_.end(),
                  [](const auto& entry) { return entry.second.connected; });
  if (phase_ != Phase::kGathering || run_id_ == run_id || anyone_is_there) return;
  Fail("all workers of the run before are gone");
}

void Job::Forget(uint32_t rank, EpochCause cause, const std::string& reason) {
  workers_.Forget(rank);
  change_reasons_.Add(cause, reason);
}

void Job::DropWorker(uint32_t rank, const std::string& reason, Readmission::Cause cause) {
  NoteLoss(rank, cause);
  if (!stops_.Forget(rank)) lost_.insert(rank);
  const std::string what = absl::StrCat(workers_.Named(rank), " was dropped from job '",
                                        spec_.name, "': ", reason);
  const JobWorker& worker = workers_.at(rank);
  // This also closes a worker without a stream: it may return, and then learns why.
  outbox_.Close(worker.connection,
                absl::AbortedError(absl::StrCat(what, "; connect again to rejoin")));
  outbox_.Log(what, LogReason::Level::kWarning);
  Say({.kind = EventKind::kDeath,
       .what = absl::StrCat(workers_.Named(rank), " was dropped: ", reason)});
  Forget(rank, EpochCause::kDeath, absl::StrCat(workers_.Named(rank), ": ", reason));
}

void Job::OnBarrier(uint32_t rank, uint64_t barrier) {
  if (workers_.EnterBarrier(rank, barrier)) MaybeReleaseBarrier();
}

void Job::MaybeReleaseBarrier() { outbox_.AddAll(workers_.EndBarrier()); }

// Figures of a server that gave its place up are ignored. They may come late, and may be
// sums of other contributions than its successor has.
void Job::OnFigures(uint32_t server, const BlockFigures& figures) {
  if (!places_.Of(server)) return;
  if (phase_ != Phase::kRunning || !plan_->NeedsDecision()) return;
  const auto decision = decisions_.Add(figures.block, figures.step, figures.figures);
  if (!decision) return;
  stall_.Decided();
  const uint64_t every = spec_.CutEvery();
  cuts_.NoteDecided(every > 0 && decisions_.decided() % every == 0);
  decision_ = StepDecision{.job = id_,
                           .step = figures.step,
                           .decision = *decision,
                           .scaler = decisions_.scaling().scaler,
                           .skipped = decisions_.scaling().skipped};
  ToServers(*decision_);
}

// ---- Time and ends ----

void Job::Tick(absl::Duration now, size_t servers_attached) {
  if (phase_ == Phase::kOver) {
    if (!ended_at_) ended_at_ = now;
    return;
  }
  if (phase_ == Phase::kGathering) SayWhoIsMissing(now, servers_attached);
  LookAgain(now);
  AwaitReturn(now);
  AwaitServers(now);
  DropSilent(now);
  EndStalls(now);
  AwaitAnswers(now);
  LetIn(now);
  if (phase_ == Phase::kOver) return;
  CutWhenItIsTime(now);
  if (!workers_.empty() || saves_last_) {
    memberless_since_.reset();
    return;
  }
  if (phase_ == Phase::kGathering) {
    BeOver();
    Say({.kind = EventKind::kEnd, .what = "all workers left before the job began"});
    return;
  }
  if (!memberless_since_) memberless_since_ = now;
  if (now - *memberless_since_ >= options_.timeouts.no_progress) {
    Fail(absl::StrCat("no worker was connected for ",
                      absl::FormatDuration(options_.timeouts.no_progress)));
  }
}

void Job::DropSilent(absl::Duration now) {
  std::vector<Lease> leases;
  for (const auto& [rank, worker] : workers_) {
    if (worker.is_awaited) continue;
    leases.push_back({.rank = rank,
                      .connected = worker.connected,
                      .heard_at = worker.heard_at,
                      .disconnected_at = worker.disconnected_at});
  }
  const std::vector<Drop> drops = ComputeDrops(now, leases, options_.timeouts);
  for (const Drop& drop : drops) {
    DropWorker(drop.rank, drop.reason, Readmission::Cause::kDied);
  }
  if (drops.empty()) return;
  MaybeReleaseBarrier();
  MaybeChangeEpoch();
}

void Job::Fail(const std::string& reason) {
  failed_ = true;
  for (const auto& [rank, worker] : workers_) {
    outbox_.Send(worker.connection, JobFailed{reason});
    outbox_.Close(worker.connection,
                  WithFailure(absl::UnavailableError(absl::StrCat("job '", spec_.name,
                                                                  "' failed: ", reason)),
                              Failure::kRetryable));
  }
  workers_.ForgetAll();
  End(reason);
}

void Job::FailWith(const absl::Status& status) {
  failed_ = true;
  for (const auto& [rank, worker] : workers_) {
    outbox_.Close(worker.connection, status);
  }
  workers_.ForgetAll();
  End(std::string(status.message()));
}

void Job::End(const std::string& reason) {
  if (is_recorded_) {
    outbox_.Store(RecordKey(id_), nullptr);
    outbox_.Store(DeclarationKey(id_), nullptr);
  }
  ToServers(DropJob{id_, reason});
  DropStandIns(reason);
  LetFormerServersGo(reason);
  for (const auto& [place, missing] : missing_) {
    if (!missing.successor) continue;
    outbox_.Send(missing.successor->connection, DropJob{id_, reason});
  }
  BeOver();
  reason_ = reason;
  outbox_.Log(absl::StrCat("job '", spec_.name,
                           failed_ ? "' has failed: " : "' is over: ", reason),
              failed_ ? LogReason::Level::kError : LogReason::Level::kInfo);
  Say({.kind = EventKind::kEnd,
       .what =
           absl::StrCat(failed_ ? "the job has failed: " : "the job is over: ", reason)});
}

}  // namespace syncline
