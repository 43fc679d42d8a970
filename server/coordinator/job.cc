#include "server/coordinator/job.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

// Of what a worker says that leaves with an error.
constexpr size_t kMostWhyBytes = 500;

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

// It stays for the status until another job takes its name, without what is large.
void Job::BeOver() {
  phase_ = Phase::kOver;
  declared_.reset();
  places_.Release();
  cuts_.Clear();
  cut_wanted_ = false;
  homecoming_.reset();
  missing_.Clear();
}

void Job::ToServers(const CoordinatorBody& body, CoordinatorOutputs& outputs) const {
  for (size_t place = 0; place < places_.size(); ++place) {
    if (IsHere(place)) outputs.push_back(ToMember{places_[place].connection, body});
  }
}

// ---- Workers speak, wait and go ----

void Job::OnHeartbeat(uint32_t rank, const Heartbeat& beat, absl::Duration now,
                      CoordinatorOutputs& outputs) {
  workers_.Hear(rank, beat, now);
  furthest_step_ = std::max(furthest_step_, beat.step);
  SayChoice(rank, beat.compression.choice, outputs);
}

void Job::OnLeave(uint32_t rank, const Leave& leave, CoordinatorOutputs& outputs) {
  outputs.push_back(CloseMember{workers_.at(rank).connection, absl::OkStatus()});
  std::string what = absl::StrCat(workers_.Named(rank), " left");
  if (!leave.why.empty()) {
    absl::StrAppend(&what, " with an error: ", Printable(leave.why, kMostWhyBytes));
    outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what),
                                LogReason::Level::kWarning});
  }
  Forget(rank, EpochCause::kLeave, what);
  Say({.kind = EventKind::kLeave, .what = what}, outputs);
  if (workers_.empty()) return EndInOrder(outputs);
  MaybeReleaseBarrier(outputs);
  MaybeChangeEpoch(outputs);
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

void Job::EndIfAbandoned(const std::string& run_id, CoordinatorOutputs& outputs) {
  const bool anyone_is_there =
      std::any_of(workers_.begin(), workers_.end(),
                  [](const auto& entry) { return entry.second.connected; });
  if (phase_ != Phase::kGathering || run_id_ == run_id || anyone_is_there) return;
  Fail("all workers of that run are gone", outputs);
}

void Job::Forget(uint32_t rank, EpochCause cause, const std::string& reason) {
  workers_.Forget(rank);
  change_reasons_.Add(cause, reason);
}

void Job::DropWorker(uint32_t rank, const std::string& reason, Readmission::Cause cause,
                     CoordinatorOutputs& outputs) {
  NoteLoss(rank, cause);
  if (!stops_.Forget(rank)) lost_.insert(rank);
  const std::string what = absl::StrCat(workers_.Named(rank), " was dropped from job '",
                                        spec_.name, "': ", reason);
  const JobWorker& worker = workers_.at(rank);
  // Also one without a stream: it may come back, and learns why.
  outputs.push_back(
      CloseMember{worker.connection,
                  absl::AbortedError(absl::StrCat(what, "; connect again to rejoin"))});
  outputs.push_back(LogReason{what, LogReason::Level::kWarning});
  Say({.kind = EventKind::kDeath,
       .what = absl::StrCat(workers_.Named(rank), " was dropped: ", reason)},
      outputs);
  Forget(rank, EpochCause::kDeath, absl::StrCat(workers_.Named(rank), ": ", reason));
}

void Job::OnBarrier(uint32_t rank, uint64_t barrier, CoordinatorOutputs& outputs) {
  if (workers_.EnterBarrier(rank, barrier)) MaybeReleaseBarrier(outputs);
}

void Job::MaybeReleaseBarrier(CoordinatorOutputs& outputs) {
  std::ranges::move(workers_.EndBarrier(), std::back_inserter(outputs));
}

void Job::OnFigures(const BlockFigures& figures, CoordinatorOutputs& outputs) {
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
  ToServers(*decision_, outputs);
}

// ---- Time and ends ----

void Job::Tick(absl::Duration now, size_t servers_attached, CoordinatorOutputs& outputs) {
  if (phase_ == Phase::kOver) {
    if (!ended_at_) ended_at_ = now;
    return;
  }
  if (phase_ == Phase::kGathering) SayWhoIsMissing(now, servers_attached, outputs);
  AwaitReturn(now, outputs);
  AwaitServers(now, outputs);
  DropSilent(now, outputs);
  EndStalls(now, outputs);
  AwaitAnswers(now, outputs);
  LetIn(now, outputs);
  if (phase_ == Phase::kOver) return;
  CutWhenItIsTime(now, outputs);
  if (!workers_.empty() || saves_last_) {
    memberless_since_.reset();
    return;
  }
  if (phase_ == Phase::kGathering) {
    BeOver();
    Say({.kind = EventKind::kEnd, .what = "all workers are gone before it began"},
        outputs);
    return;
  }
  if (!memberless_since_) memberless_since_ = now;
  if (now - *memberless_since_ >= options_.timeouts.no_progress) {
    Fail(absl::StrCat("no worker for ",
                      absl::FormatDuration(options_.timeouts.no_progress)),
         outputs);
  }
}

void Job::DropSilent(absl::Duration now, CoordinatorOutputs& outputs) {
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
    DropWorker(drop.rank, drop.reason, Readmission::Cause::kDied, outputs);
  }
  if (drops.empty()) return;
  MaybeReleaseBarrier(outputs);
  MaybeChangeEpoch(outputs);
}

void Job::Fail(const std::string& reason, CoordinatorOutputs& outputs) {
  failed_ = true;
  for (const auto& [rank, worker] : workers_) {
    outputs.push_back(ToMember{worker.connection, JobFailed{reason}});
    outputs.push_back(CloseMember{
        worker.connection, WithFailure(absl::UnavailableError(absl::StrCat(
                                           "job '", spec_.name, "' failed: ", reason)),
                                       Failure::kRetryable)});
  }
  workers_.ForgetAll();
  End(reason, outputs);
}

void Job::FailWith(const absl::Status& status, CoordinatorOutputs& outputs) {
  failed_ = true;
  for (const auto& [rank, worker] : workers_) {
    outputs.push_back(CloseMember{worker.connection, status});
  }
  workers_.ForgetAll();
  End(std::string(status.message()), outputs);
}

void Job::End(const std::string& reason, CoordinatorOutputs& outputs) {
  CoordinatorOutputs drops;
  ToServers(DropJob{id_, reason}, drops);
  DropStandIns(reason, drops);
  for (const auto& [place, missing] : missing_) {
    if (!missing.successor) continue;
    drops.push_back(ToMember{missing.successor->connection, DropJob{id_, reason}});
  }
  BeOver();
  reason_ = reason;
  if (is_recorded_) {
    outputs.push_back(StoreRecord{RecordKey(id_), nullptr});
    outputs.push_back(StoreRecord{DeclarationKey(id_), nullptr});
  }
  std::ranges::move(drops, std::back_inserter(outputs));
  outputs.push_back(
      LogReason{absl::StrCat("job '", spec_.name,
                             failed_ ? "' has failed: " : "' is over: ", reason),
                failed_ ? LogReason::Level::kError : LogReason::Level::kInfo});
  Say({.kind = EventKind::kEnd,
       .what =
           absl::StrCat(failed_ ? "the job has failed: " : "the job is over: ", reason)},
      outputs);
}

}  // namespace syncline
