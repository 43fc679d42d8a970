// When a job is saved, what its checkpoints contain, and the checkpoint that it begins
// with.
//
// Checkpoints every N steps need no order from here: all shards copy their blocks at the
// same versions (ShardOptions::cut_every). Checkpoints by time and by request are ordered
// with a change of epoch, because no block is past the epoch's first step between its two
// phases.
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

// In mode asp each block counts its own contributions.
absl::Status NoCommonStep() {
  return absl::FailedPreconditionError(
      "a job of mode asp has no checkpoints, because its blocks have no step in common; "
      "use mode bsp or ssp, or start over (--resume never)");
}

constexpr char kAllLeft[] = "all workers left";

// Pause between two questions to a store that does not answer. It doubles each time.
constexpr absl::Duration kFirstLookPause = absl::Seconds(1);
constexpr absl::Duration kLongestLookPause = absl::Seconds(30);

}  // namespace

// ---- What a job begins with ----

bool Job::KnowsBeginning() {
  if (search_ != Search::kNotBegun) return search_ == Search::kDone;
  if (options_.keeps_checkpoints) {
    search_ = Search::kUnderWay;
    outbox_.Add(CheckpointOrder{FindCheckpoint{id_, spec_.name, spec_.settings.resume}});
    return false;
  }
  const JobSettings& settings = spec_.settings;
  const bool wants_one = settings.resume != "auto" && settings.resume != "never";
  if (settings.checkpoint_every.IsScheduled() || wants_one) {
    FailWith(Refused(absl::StrCat(
        "job '", spec_.name, "' asks for ",
        wants_one ? absl::StrCat("checkpoint '", settings.resume, "'") : "checkpoints",
        ", but the coordinator has no place for checkpoints; start it and all servers "
        "with --checkpoint-dir")));
    return false;
  }
  search_ = Search::kDone;
  return true;
}

// Checks what only the coordinator knows. Servers check tensors and state.
absl::Status Job::CheckBeginning(const Beginning& beginning) const {
  if (!beginning.resumes) return absl::OkStatus();
  if (spec_.training.sync().is_async()) return NoCommonStep();
  const std::vector<TrainedTensor> tensors = declared_->spec.Trained();
  absl::Status same = CheckChange(beginning.from.declared, spec_.training, tensors);
  // The checkpoint's settings include the changes that were made while the job ran.
  if (same.ok()) same = CheckChange(spec_.training, beginning.from.training, tensors);
  if (same.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint ", beginning.from.name.ToString(),
      " was made with different settings: ", std::string(same.message()),
      "; start with the settings of the checkpoint, or start over (--resume never)"));
}

// The store may have a checkpoint of this job, which a job that begins now would leave
// behind. So the job waits, unless it neither resumes from checkpoints nor makes any.
void Job::OnAway(const std::string& why) {
  const bool is_new = away_.empty();
  away_ = why;
  away_since_.reset();
  look_pause_ = is_new ? kFirstLookPause : std::min(2 * look_pause_, kLongestLookPause);
  const bool needs_none =
      spec_.settings.resume == "never" && !spec_.settings.checkpoint_every.IsScheduled();
  search_ = needs_none ? Search::kDone : Search::kAway;
  if (needs_none) beginning_.run = 0;
  if (!is_new) return;
  const std::string what =
      absl::StrCat(needs_none ? "begins without a place for checkpoints: "
                              : "waits for its checkpoints: ",
                   why);
  outbox_.Log(absl::StrCat("job '", spec_.name, "' ", what), LogReason::Level::kWarning);
  Say({.kind = EventKind::kCheckpoint, .what = what});
}

void Job::LookAgain(absl::Duration now) {
  if (phase_ != Phase::kGathering || search_ != Search::kAway) return;
  if (!away_since_) away_since_ = now;
  if (now - *away_since_ < look_pause_) return;
  search_ = Search::kUnderWay;
  outbox_.Add(CheckpointOrder{FindCheckpoint{id_, spec_.name, spec_.settings.resume}});
}

void Job::OnFound(const CheckpointFound& found) {
  if (search_ != Search::kUnderWay) return;
  absl::Status status = found.beginning.status();
  if (absl::IsUnavailable(status)) return OnAway(std::string(status.message()));
  search_ = Search::kDone;
  if (status.ok()) status = CheckBeginning(*found.beginning);
  if (!status.ok()) {
    return FailWith(Refused(absl::StrCat(
        "job '", spec_.name, "' cannot be resumed: ", std::string(status.message()))));
  }
  if (!std::exchange(away_, "").empty()) {
    Log("the place of its checkpoints answers again");
  }
  beginning_ = *found.beginning;
  if (!beginning_.resumes) return;
  const Manifest& from = beginning_.from;
  decisions_.Resume(from.name.step, {from.loss_scaler, from.skipped_steps});
  cuts_.set_resumed_from(from.name.ToString());
  // Changes that were made while the job ran stay in force, unless the program has
  // changed its own settings.
  const TrainingSettings declared = spec_.training;
  const bool is_same = Canonical(from.declared) == Canonical(declared);
  TrainingSettings changed = from.training;
  changed.mode = declared.mode;  // memory is planned for it
  if (is_same && changed != spec_.training) {
    spec_.training = changed;
    next_training_ = changed;
    plan_ = PlanOf(changed);
  }
  furthest_step_ = from.name.step;
  const std::string what = absl::StrCat("goes on from checkpoint ", from.name.ToString());
  outbox_.Log(absl::StrCat("job '", spec_.name, "' ", what));
  Say({.kind = EventKind::kCheckpoint, .what = what});
  if (spec_.training != declared) SayNewSettings(declared);
}

// ---- When it is saved ----

absl::StatusOr<uint64_t> Job::CreateCheckpoint() {
  if (!options_.keeps_checkpoints) {
    return absl::FailedPreconditionError(
        "the coordinator has no place for checkpoints; start it and all servers with "
        "--checkpoint-dir");
  }
  if (spec_.training.sync().is_async()) return NoCommonStep();
  SYNCLINE_RETURN_IF_ERROR(CheckRuns());
  if (beginning_.run == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", spec_.name,
                     "' makes no checkpoints: their place did not answer when it began, "
                     "with --resume never and without --checkpoint-every"));
  }
  cut_wanted_ = true;
  change_reasons_.Add(EpochCause::kCheckpoint, "a checkpoint");
  MaybeChangeEpoch();
  return cuts_.saved().written + cuts_.saved().failed;
}

void Job::GiveUpLateCuts(absl::Duration now) {
  const std::map<uint64_t, uint32_t> late = cuts_.Late(now);
  // Servers that hang are not asked again.
  last_ordered_ = last_ordered_ || (saves_last_ && !late.empty());
  for (const auto& [step, server] : late) {
    if (!cuts_.contains(step)) continue;  // the job ended with the cut before
    FailCut(step, absl::DeadlineExceededError(
                      absl::StrCat("server ", server, " did not write it within ",
                                   absl::FormatDuration(Cuts::kLimit))));
  }
}

void Job::CutWhenItIsTime(absl::Duration now) {
  GiveUpLateCuts(now);
  const absl::Duration every = absl::Seconds(spec_.settings.checkpoint_every.seconds);
  if (phase_ != Phase::kRunning || saves_last_ || every == absl::ZeroDuration()) return;
  if (!cut_since_) cut_since_ = now;
  if (now - *cut_since_ < every || cut_wanted_ || !cuts_.empty()) return;
  cut_since_ = now;
  cut_wanted_ = true;
  change_reasons_.Add(EpochCause::kCheckpoint, "a checkpoint");
  MaybeChangeEpoch();
}

// Orders a checkpoint of the new epoch's first step, or of a later one. All servers are
// prepared, so none of their blocks is past the first step. Only a step that ends an
// update is saved, and never step 0, whose weights are still to come.
void Job::OrderCut() {
  const bool adds_on_arrival = spec_.training.aggregation == Aggregation::kArrival;
  uint64_t step = FirstUpdateFrom(
      std::max<uint64_t>(1, change_->next_step + (adds_on_arrival ? 1 : 0)));
  const uint64_t every = spec_.CutEvery();
  const auto is_scheduled = [&] { return every > 0 && step % every == 0; };
  // No shard copies a step for an order that it copies by schedule, or that was tried
  // before.
  const auto has_ended = [&] { return cuts_.IsLost(step) || cuts_.HasEnded(step); };
  while (is_scheduled() || has_ended()) {
    const bool comes_next = is_scheduled() && !has_ended();
    step = FirstUpdateFrom(step + 1);
    if (comes_next && is_scheduled()) return;
  }
  BeginCut(step);
}

// Begins the checkpoint of this step unless it has begun. Shards, and servers that train
// nothing, hear of the step from here.
void Job::BeginCut(uint64_t step) {
  if (cuts_.contains(step)) return;
  std::set<uint32_t> servers;
  for (const JobServer& server : places_) servers.insert(server.server);
  cuts_.Begin(step, std::move(servers));
  ToServers(CutAt{
      .job = id_, .step = step, .last = end_step_.has_value(), .again = last_ordered_});
  while (const auto oldest = cuts_.OneTooMany(step)) {
    FailCut(*oldest, absl::DeadlineExceededError("not all servers finished it"));
  }
}

// ---- The last step ----

// A job with scheduled checkpoints is over once its last step is saved. That is the first
// step that no block has completed when the epoch without members is committed.
void Job::EndInOrder() {
  const bool saves =
      options_.keeps_checkpoints && spec_.settings.checkpoint_every.IsScheduled();
  if (phase_ != Phase::kRunning || !saves) return End(kAllLeft);
  saves_last_ = true;
  cut_wanted_ = false;
  reason_ = absl::StrCat(kAllLeft, ", saving its last step");
  Log(reason_);
  Store();
  // The last worker to leave may have been in no epoch.
  change_is_due_ = !change_.has_value();
  MaybeChangeEpoch();
}

// Drops the checkpoints of later steps, which will not be made. For the earlier ones,
// servers are told that no push follows.
void Job::SettleEnd(uint64_t step) {
  end_step_ = step;
  workers_.NoteStep(step);
  reason_ = absl::StrCat(kAllLeft, ", saving step ", step);
  for (const uint64_t open : cuts_.KeepUpTo(step)) {
    ToServers(CutAt{.job = id_, .step = open, .last = true});
  }
  SaveLast();
}

// Checkpoints that are being written come first, since servers write one checkpoint of a
// job at a time. The last scheduled one may be among them although no server has reported
// it yet.
void Job::SaveLast() {
  if (!end_step_ || !cuts_.empty()) return;
  const uint64_t step = *end_step_;
  const uint64_t every = spec_.CutEvery();
  const uint64_t scheduled = every == 0 ? 0 : step / every * every;
  const uint64_t begin = beginning_.resumes ? beginning_.from.name.step : 0;
  const bool is_open = scheduled > begin && !cuts_.IsLost(scheduled) &&
                       !cuts_.HasEnded(scheduled) && !last_ordered_;
  if (is_open) return BeginCut(scheduled);
  const CheckpointView& saved = cuts_.saved();
  const bool is_saved = step <= begin || (saved.written > 0 && saved.step == step);
  if (is_saved || last_ordered_) return End(kAllLeft);
  last_ordered_ = true;
  outbox_.Add(CheckpointOrder{SettleCheckpoints{id_}});
}

// The store has deleted what a failed attempt at this step left, and nothing of the new
// attempt exists yet.
void Job::OnSettled() {
  if (!IsEnding() || !last_ordered_) return;
  cuts_.TryAgain(*end_step_);
  BeginCut(*end_step_);
  cuts_.UseLatestScaling(*end_step_);
}

// After a restart it is not known whether the epoch without members was begun, and
// whether servers have written the last step. So the job fails.
void Job::GiveUpLast() {
  const std::string& latest = cuts_.saved().latest;
  Fail(
      absl::StrCat("the coordinator was restarted while the last step was being "
                   "saved; the last checkpoint is ",
                   latest.empty() ? "none of this run" : latest));
}

// ---- What servers have written ----

void Job::OnWritten(uint32_t server, const CheckpointWritten& written) {
  if (phase_ != Phase::kRunning || !options_.keeps_checkpoints) return;
  if (!places_.Of(server)) return;           // it gave its place up
  if (cuts_.HasEnded(written.step)) return;  // the report comes late
  // Other servers may have reported a lost cut before the coordinator was restarted. A
  // job at its end waits for no cut that only some servers report.
  const bool is_lost = cuts_.IsLost(written.step);
  const bool is_of_use =
      end_step_ ? cuts_.contains(written.step) || (written.step <= *end_step_ && !is_lost)
                : !is_lost;
  if (!is_of_use) return;
  BeginCut(written.step);
  const Cut* cut = cuts_.Add(server, written);
  if (cut == nullptr) return;
  if (!cut->status.ok()) return FailCut(written.step, cut->status);
  Manifest manifest = {.job = spec_.name,
                       .name = {.run = beginning_.run, .step = written.step},
                       .push_codec = spec_.settings.push_codec,
                       .publish_codec = spec_.settings.publish_codec,
                       .declared = declared_->spec.training,
                       .training = cut->training,
                       .loss_scaler = cut->scaling->scaler,
                       .skipped_steps = cut->scaling->skipped,
                       .files = cut->files};
  outbox_.Add(CheckpointOrder{KeepCheckpoint{.job = id_,
                                             .manifest = std::move(manifest),
                                             .declared = declared_,
                                             .keep = spec_.settings.checkpoint_keep}});
}

// Gives up cuts that some servers reported to the coordinator before the restart, and
// others to this one.
void Job::GiveUpLostCuts() {
  while (const auto lost = cuts_.FirstLost()) {
    FailCut(*lost, GivenUpByRestart());
  }
}

void Job::OnKept(const CheckpointKept& kept, absl::Duration now) {
  if (!cuts_.contains(kept.name.step)) return;
  if (!kept.status.ok()) return FailCut(kept.name.step, kept.status);
  FinishCut(kept.name, now);
}

void Job::FinishCut(const CheckpointName& name, absl::Duration now) {
  cuts_.Finish(name, now);
  Store();
  const CheckpointView& saved = cuts_.saved();
  const std::string what = absl::StrCat("checkpoint ", name.ToString(), " is complete");
  Log(absl::StrCat(what, ": ", saved.bytes, " bytes in ",
                   absl::FormatDuration(saved.took)));
  Say({.kind = EventKind::kCheckpoint,
       .what = absl::StrCat(what, ", ", saved.bytes, " bytes"),
       .took = saved.took});
  SaveLast();
}

void Job::FailCut(uint64_t step, const absl::Status& status) {
  const CheckpointName name = {.run = beginning_.run, .step = step};
  const std::string what =
      absl::StrCat("checkpoint ", name.ToString(),
                   " failed, earlier ones are kept: ", std::string(status.message()));
  cuts_.Fail(name, status);  // destroys `status` if it is the cut's own
  Store();
  outbox_.Add(CheckpointOrder{DiscardCheckpoint{spec_.name, name}});
  Report(EventKind::kCheckpoint, what, LogReason::Level::kWarning);
  SaveLast();
}

}  // namespace syncline
