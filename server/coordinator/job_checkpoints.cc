// When a job is saved, what it is then, and what it began with.
//
// Checkpoints by steps need no word from here: all shards copy their blocks at the same
// versions (ShardOptions::cut_every). Those by time and by request come with a change of
// epoch, since between its phases no block is past its first step.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/coordinator/job.h"

namespace syncline {
namespace {

absl::Status Refused(const std::string& what) {
  return WithFailure(absl::FailedPreconditionError(what), Failure::kJobRefused);
}

// In mode asp blocks count contributions, each its own.
absl::Status NoCommonStep() {
  return absl::FailedPreconditionError(
      "in mode asp blocks have no step in common, so there are no checkpoints; train in "
      "mode bsp or ssp, or begin anew (--resume never)");
}

constexpr char kAllLeft[] = "all workers left";

}  // namespace

// ---- What a job begins with ----

bool Job::KnowsBeginning(CoordinatorOutputs& outputs) {
  if (search_ != Search::kNotBegun) return search_ == Search::kDone;
  if (options_.keeps_checkpoints) {
    search_ = Search::kUnderWay;
    outputs.push_back(
        CheckpointOrder{FindCheckpoint{id_, spec_.name, spec_.settings.resume}});
    return false;
  }
  const JobSettings& settings = spec_.settings;
  const bool wants_one = settings.resume != "auto" && settings.resume != "never";
  if (settings.checkpoint_every.IsScheduled() || wants_one) {
    FailWith(Refused(absl::StrCat(
                 "job '", spec_.name, "' asks for ",
                 wants_one ? absl::StrCat("checkpoint '", settings.resume, "'")
                           : "checkpoints",
                 ", but the coordinator has no place for any; start it and all servers "
                 "with --checkpoint-dir")),
             outputs);
    return false;
  }
  search_ = Search::kDone;
  return true;
}

// Servers look at tensors and state; here is what only the coordinator knows.
absl::Status Job::CheckBeginning(const Beginning& beginning) const {
  if (!beginning.resumes) return absl::OkStatus();
  if (spec_.training.sync().is_async()) return NoCommonStep();
  const std::vector<TrainedTensor> tensors = declared_->spec.Trained();
  absl::Status same = CheckChange(beginning.from.declared, spec_.training, tensors);
  // With the changes that were made while it ran.
  if (same.ok()) same = CheckChange(spec_.training, beginning.from.training, tensors);
  if (same.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint ", beginning.from.name.ToString(), " was made with other settings: ",
      std::string(same.message()), "; start with those, or begin anew (--resume never)"));
}

void Job::OnFound(const CheckpointFound& found, CoordinatorOutputs& outputs) {
  if (search_ != Search::kUnderWay) return;
  search_ = Search::kDone;
  absl::Status status = found.beginning.status();
  if (status.ok()) status = CheckBeginning(*found.beginning);
  if (!status.ok()) {
    const std::string what = absl::StrCat(
        "job '", spec_.name, "' cannot be resumed: ", std::string(status.message()));
    const bool may_pass = status.code() == absl::StatusCode::kUnavailable;
    return FailWith(may_pass
                        ? WithFailure(absl::UnavailableError(what), Failure::kRetryable)
                        : Refused(what),
                    outputs);
  }
  beginning_ = *found.beginning;
  if (!beginning_.resumes) return;
  const Manifest& from = beginning_.from;
  decisions_.Resume(from.name.step, {from.loss_scaler, from.skipped_steps});
  cuts_.set_resumed_from(from.name.ToString());
  // Changes that were made while it ran hold on, unless the program itself has changed.
  const TrainingSettings declared = spec_.training;
  const bool is_same = Canonical(from.declared) == Canonical(declared);
  TrainingSettings changed = from.training;
  changed.mode = declared.mode;  // that memory is planned for
  if (is_same && changed != spec_.training) {
    spec_.training = changed;
    next_training_ = changed;
    plan_ = PlanOf(changed);
  }
  furthest_step_ = from.name.step;
  const std::string what = absl::StrCat("goes on from checkpoint ", from.name.ToString());
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "' ", what)});
  Say({.kind = EventKind::kCheckpoint, .what = what}, outputs);
  if (spec_.training != declared) SayNewSettings(declared, outputs);
}

// ---- When it is saved ----

absl::StatusOr<uint64_t> Job::CreateCheckpoint(CoordinatorOutputs& outputs) {
  if (!options_.keeps_checkpoints) {
    return absl::FailedPreconditionError(
        "the coordinator has no place for checkpoints; start it and all servers with "
        "--checkpoint-dir");
  }
  if (spec_.training.sync().is_async()) return NoCommonStep();
  SYNCLINE_RETURN_IF_ERROR(CheckRuns());
  cut_wanted_ = true;
  change_reasons_.Add(EpochCause::kCheckpoint, "a checkpoint");
  MaybeChangeEpoch(outputs);
  return cuts_.saved().written + cuts_.saved().failed;
}

void Job::GiveUpLateCuts(absl::Duration now, CoordinatorOutputs& outputs) {
  const std::map<uint64_t, uint32_t> late = cuts_.Late(now);
  // Servers that hang are not asked once more.
  last_ordered_ = last_ordered_ || (saves_last_ && !late.empty());
  for (const auto& [step, server] : late) {
    if (!cuts_.contains(step)) continue;  // the job ended with the one before
    FailCut(step,
            absl::DeadlineExceededError(absl::StrCat("server ", server,
                                                     " did not write it within ",
                                                     absl::FormatDuration(Cuts::kLimit))),
            outputs);
  }
}

void Job::CutWhenItIsTime(absl::Duration now, CoordinatorOutputs& outputs) {
  GiveUpLateCuts(now, outputs);
  const absl::Duration every = absl::Seconds(spec_.settings.checkpoint_every.seconds);
  if (phase_ != Phase::kRunning || saves_last_ || every == absl::ZeroDuration()) return;
  if (!cut_since_) cut_since_ = now;
  if (now - *cut_since_ < every || cut_wanted_ || !cuts_.empty()) return;
  cut_since_ = now;
  cut_wanted_ = true;
  change_reasons_.Add(EpochCause::kCheckpoint, "a checkpoint");
  MaybeChangeEpoch(outputs);
}

// All servers are prepared: none of their blocks is past the first step of the new epoch.
// Whole updates only, and never step 0, whose weights are still to come.
void Job::OrderCut(CoordinatorOutputs& outputs) {
  const bool adds_on_arrival = spec_.training.aggregation == Aggregation::kArrival;
  uint64_t step = FirstUpdateFrom(
      std::max<uint64_t>(1, change_->next_step + (adds_on_arrival ? 1 : 0)));
  const uint64_t every = spec_.CutEvery();
  const auto is_scheduled = [&] { return every > 0 && step % every == 0; };
  // What comes by itself, or was tried before, no shard copies for an order.
  const auto has_ended = [&] { return cuts_.IsLost(step) || cuts_.HasEnded(step); };
  while (is_scheduled() || has_ended()) {
    const bool comes_next = is_scheduled() && !has_ended();
    step = FirstUpdateFrom(step + 1);
    if (comes_next && is_scheduled()) return;
  }
  BeginCut(step, outputs);
}

// Unless it has begun. Servers that train nothing, and shards, hear of it from here.
void Job::BeginCut(uint64_t step, CoordinatorOutputs& outputs) {
  if (cuts_.contains(step)) return;
  std::set<uint32_t> servers;
  for (const JobServer& server : places_) servers.insert(server.server);
  cuts_.Begin(step, std::move(servers));
  ToServers(CutAt{.job = id_,
                  .step = step,
                  .last = end_step_.has_value(),
                  .again = last_ordered_},
            outputs);
  while (const auto oldest = cuts_.OneTooMany(step)) {
    FailCut(*oldest, absl::DeadlineExceededError("some server never finished it"),
            outputs);
  }
}

// ---- The last step ----

// A job with a schedule is over once its last step is saved: when the epoch without members
// is committed, that is the first step that no block has completed.
void Job::EndInOrder(CoordinatorOutputs& outputs) {
  const bool saves =
      options_.keeps_checkpoints && spec_.settings.checkpoint_every.IsScheduled();
  if (phase_ != Phase::kRunning || !saves) return End(kAllLeft, outputs);
  saves_last_ = true;
  cut_wanted_ = false;
  reason_ = absl::StrCat(kAllLeft, ", saving its last step");
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", reason_)});
  Store(outputs);
  // The last one to leave may have been in no epoch.
  change_is_due_ = !change_.has_value();
  MaybeChangeEpoch(outputs);
}

// What waits for a later step waits in vain, and for an earlier one no push comes any more.
void Job::SettleEnd(uint64_t step, CoordinatorOutputs& outputs) {
  end_step_ = step;
  workers_.NoteStep(step);
  reason_ = absl::StrCat(kAllLeft, ", saving step ", step);
  for (const uint64_t open : cuts_.KeepUpTo(step)) {
    ToServers(CutAt{.job = id_, .step = open, .last = true}, outputs);
  }
  SaveLast(outputs);
}

// What is being written comes first, since servers write one checkpoint of a job at a time.
// Of the last scheduled one they may not have said anything yet.
void Job::SaveLast(CoordinatorOutputs& outputs) {
  if (!end_step_ || !cuts_.empty()) return;
  const uint64_t step = *end_step_;
  const uint64_t every = spec_.CutEvery();
  const uint64_t scheduled = every == 0 ? 0 : step / every * every;
  const uint64_t begin = beginning_.resumes ? beginning_.from.name.step : 0;
  const bool is_open = scheduled > begin && !cuts_.IsLost(scheduled) &&
                       !cuts_.HasEnded(scheduled) && !last_ordered_;
  if (is_open) return BeginCut(scheduled, outputs);
  const CheckpointView& saved = cuts_.saved();
  const bool is_saved = step <= begin || (saved.written > 0 && saved.step == step);
  if (is_saved || last_ordered_) return End(kAllLeft, outputs);
  last_ordered_ = true;
  outputs.push_back(CheckpointOrder{SettleCheckpoints{id_}});
}

// What failed before at that step is deleted by now, and nothing of the new one is.
void Job::OnSettled(CoordinatorOutputs& outputs) {
  if (!IsEnding() || !last_ordered_) return;
  cuts_.TryAgain(*end_step_);
  BeginCut(*end_step_, outputs);
  cuts_.UseLatestScaling(*end_step_);
}

// The epoch without members may not have been begun, and servers may have written or not.
void Job::GiveUpLast(CoordinatorOutputs& outputs) {
  const std::string& latest = cuts_.saved().latest;
  Fail(absl::StrCat("the coordinator was started anew while the last step was being "
                    "saved; the last checkpoint is ",
                    latest.empty() ? "none of this run" : latest),
       outputs);
}

// ---- What servers have written ----

void Job::OnWritten(uint32_t server, const CheckpointWritten& written,
                    CoordinatorOutputs& outputs) {
  if (phase_ != Phase::kRunning || !options_.keeps_checkpoints) return;
  if (cuts_.HasEnded(written.step)) return;  // it comes late
  // Others said so before a restart. At its end the job orders no cut that others know of.
  const bool is_lost = cuts_.IsLost(written.step);
  const bool is_of_use =
      end_step_ ? cuts_.contains(written.step) || (written.step <= *end_step_ && !is_lost)
                : !is_lost;
  if (!is_of_use) return;
  BeginCut(written.step, outputs);
  const Cut* cut = cuts_.Add(server, written);
  if (cut == nullptr) return;
  if (!cut->status.ok()) return FailCut(written.step, cut->status, outputs);
  Manifest manifest = {.job = spec_.name,
                       .name = {.run = beginning_.run, .step = written.step},
                       .push_codec = spec_.settings.push_codec,
                       .publish_codec = spec_.settings.publish_codec,
                       .declared = declared_->spec.training,
                       .training = cut->training,
                       .loss_scaler = cut->scaling->scaler,
                       .skipped_steps = cut->scaling->skipped,
                       .files = cut->files};
  outputs.push_back(
      CheckpointOrder{KeepCheckpoint{.job = id_,
                                     .manifest = std::move(manifest),
                                     .declared = declared_,
                                     .keep = spec_.settings.checkpoint_keep}});
}

// Of these some servers have said what they wrote, and others said it to the coordinator
// that is gone.
void Job::GiveUpLostCuts(CoordinatorOutputs& outputs) {
  while (const auto lost = cuts_.FirstLost()) {
    FailCut(*lost, GivenUpByRestart(), outputs);
  }
}

void Job::OnKept(const CheckpointKept& kept, absl::Duration now,
                 CoordinatorOutputs& outputs) {
  if (!cuts_.contains(kept.name.step)) return;
  if (!kept.status.ok()) return FailCut(kept.name.step, kept.status, outputs);
  FinishCut(kept.name, now, outputs);
}

void Job::FinishCut(const CheckpointName& name, absl::Duration now,
                    CoordinatorOutputs& outputs) {
  cuts_.Finish(name, now);
  Store(outputs);
  const CheckpointView& saved = cuts_.saved();
  const std::string what = absl::StrCat("checkpoint ", name.ToString(), " is complete");
  outputs.push_back(
      LogReason{absl::StrCat("job '", spec_.name, "': ", what, ": ", saved.bytes,
                             " bytes in ", absl::FormatDuration(saved.took))});
  Say({.kind = EventKind::kCheckpoint,
       .what = absl::StrCat(what, ", ", saved.bytes, " bytes"),
       .took = saved.took},
      outputs);
  SaveLast(outputs);
}

void Job::FailCut(uint64_t step, const absl::Status& status,
                  CoordinatorOutputs& outputs) {
  const CheckpointName name = {.run = beginning_.run, .step = step};
  const std::string what =
      absl::StrCat("checkpoint ", name.ToString(),
                   " failed, earlier ones stay: ", std::string(status.message()));
  cuts_.Fail(name, status);  // which may be the cut's own, and gone then
  Store(outputs);
  outputs.push_back(CheckpointOrder{DiscardCheckpoint{spec_.name, name}});
  outputs.push_back(LogReason{absl::StrCat("job '", spec_.name, "': ", what),
                              LogReason::Level::kWarning});
  Say({.kind = EventKind::kCheckpoint, .what = what}, outputs);
  SaveLast(outputs);
}

}  // namespace syncline
