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

// A cut that some server never answers must not stand in the way of all later ones.
constexpr size_t kMaxOpenCuts = 8;
constexpr absl::Duration kCutLimit = absl::Minutes(30);
constexpr char kAllLeft[] = "all workers left";
// What comes late is of one of so many.
constexpr size_t kMaxEndedCuts = 64;

absl::Status GivenUp() {
  return absl::UnavailableError(
      "given up when the coordinator was started anew in the middle of it; later ones "
      "are "
      "not concerned");
}

}  // namespace

// ---- What a job begins with ----

bool Job::KnowsBeginning(CoordinatorOutputs& outputs) {
  if (search_ != Search::kNotBegun) return search_ == Search::kDone;
  if (options_.keeps_checkpoints) {
    search_ = Search::kUnderWay;
    outputs.push_back(
        CheckpointOrder{FindCheckpoint{id_, spec_.name, spec_.checkpoint.resume}});
    return false;
  }
  const CheckpointPolicy& policy = spec_.checkpoint;
  const bool wants_one = policy.resume != "auto" && policy.resume != "never";
  if (policy.IsScheduled() || wants_one) {
    FailWith(
        Refused(absl::StrCat(
            "job '", spec_.name, "' asks for ",
            wants_one ? absl::StrCat("checkpoint '", policy.resume, "'") : "checkpoints",
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
    return FailWith(Refused(absl::StrCat("job '", spec_.name, "' cannot be resumed: ",
                                         std::string(status.message()))),
                    outputs);
  }
  beginning_ = *found.beginning;
  if (!beginning_.resumes) return;
  const Manifest& from = beginning_.from;
  decisions_.Resume(from.loss_scaler, from.skipped_steps);
  decided_ = from.name.step;
  saved_.resumed_from = from.name.ToString();
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
  return saved_.written + saved_.failed;
}

void Job::GiveUpLateCuts(absl::Duration now, CoordinatorOutputs& outputs) {
  std::map<uint64_t, std::set<uint32_t>> late;
  for (auto& [step, cut] : cuts_) {
    if (!cut.since) cut.since = now;
    // The keeper answers for certain.
    if (cut.unwritten.empty() || now - *cut.since < kCutLimit) continue;
    late[step] = cut.unwritten;
  }
  // Servers that hang are not asked once more.
  last_ordered_ = last_ordered_ || (saves_last_ && !late.empty());
  for (const auto& [step, servers] : late) {
    if (!cuts_.contains(step)) continue;  // the job ended with the one before
    FinishCut(step,
              absl::DeadlineExceededError(absl::StrCat("server ", *servers.begin(),
                                                       " did not write it within ",
                                                       absl::FormatDuration(kCutLimit))),
              outputs);
  }
}

void Job::CutWhenItIsTime(absl::Duration now, CoordinatorOutputs& outputs) {
  GiveUpLateCuts(now, outputs);
  const absl::Duration every = absl::Seconds(spec_.checkpoint.every_seconds);
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
  const auto has_ended = [&] { return step <= lost_cuts_ || ended_cuts_.contains(step); };
  while (is_scheduled() || has_ended()) {
    const bool comes_next = is_scheduled() && !has_ended();
    step = FirstUpdateFrom(step + 1);
    if (comes_next && is_scheduled()) return;
  }
  CutOf(step, outputs);
}

// Servers that train nothing, and shards, hear of it from here.
Job::Cut& Job::CutOf(uint64_t step, CoordinatorOutputs& outputs) {
  const auto [entry, is_new] = cuts_.try_emplace(step);
  if (!is_new) return entry->second;
  last_cut_ = std::max(last_cut_, step);
  entry->second.scaling = ScalingAt(step);
  for (const JobServer& server : servers_) entry->second.unwritten.insert(server.server);
  ToServers(CutAt{.job = id_,
                  .step = step,
                  .last = end_step_.has_value(),
                  .again = last_ordered_},
            outputs);
  const auto is_old = [step](const auto& cut) {
    return cut.first != step && !cut.second.unwritten.empty();
  };
  while (cuts_.size() > kMaxOpenCuts) {
    const auto oldest = std::ranges::find_if(cuts_, is_old);
    if (oldest == cuts_.end()) break;
    FinishCut(oldest->first, absl::DeadlineExceededError("some server never finished it"),
              outputs);
  }
  return cuts_.at(step);
}

// ---- The last step ----

// A job with a schedule is over once its last step is saved: when the epoch without members
// is committed, that is the first step that no block has completed.
void Job::EndInOrder(CoordinatorOutputs& outputs) {
  const bool saves = options_.keeps_checkpoints && spec_.checkpoint.IsScheduled();
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
  last_step_ = std::max(last_step_, step);
  reason_ = absl::StrCat(kAllLeft, ", saving step ", step);
  cuts_.erase(cuts_.upper_bound(step), cuts_.end());
  for (const auto& [open, cut] : cuts_) {
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
  const bool is_open = scheduled > std::max(begin, lost_cuts_) &&
                       !ended_cuts_.contains(scheduled) && !last_ordered_;
  if (is_open) {
    CutOf(scheduled, outputs);
    return;
  }
  const bool is_saved = step <= begin || (saved_.written > 0 && saved_.step == step);
  if (is_saved || last_ordered_) return End(kAllLeft, outputs);
  last_ordered_ = true;
  outputs.push_back(CheckpointOrder{SettleCheckpoints{id_}});
}

// What failed before at that step is deleted by now, and nothing of the new one is.
void Job::OnSettled(CoordinatorOutputs& outputs) {
  if (!IsEnding() || !last_ordered_) return;
  ended_cuts_.erase(*end_step_);
  CutOf(*end_step_, outputs).scaling = Scaling{decisions_.scaler(), decisions_.skipped()};
}

// The epoch without members may not have been begun, and servers may have written or not.
void Job::GiveUpLast(CoordinatorOutputs& outputs) {
  Fail(absl::StrCat("the coordinator was started anew while the last step was being "
                    "saved; the last checkpoint is ",
                    saved_.latest.empty() ? "none of this run" : saved_.latest),
       outputs);
}

std::optional<Job::Scaling> Job::ScalingAt(uint64_t step) const {
  if (const auto scaling = scalings_.find(step); scaling != scalings_.end()) {
    return scaling->second;
  }
  if (decided_ != step) return std::nullopt;
  return Scaling{decisions_.scaler(), decisions_.skipped()};
}

void Job::NoteDecided(uint64_t steps) {
  decided_ = steps;
  const Scaling scaling = {decisions_.scaler(), decisions_.skipped()};
  if (const auto cut = cuts_.find(steps); cut != cuts_.end()) {
    cut->second.scaling = scaling;
  }
  const uint64_t every = spec_.CutEvery();
  if (every == 0 || steps % every != 0) return;
  scalings_[steps] = scaling;
  while (scalings_.size() > 2 * kMaxOpenCuts) scalings_.erase(scalings_.begin());
}

// ---- What servers have written ----

void Job::OnWritten(uint32_t server, const CheckpointWritten& written,
                    CoordinatorOutputs& outputs) {
  if (phase_ != Phase::kRunning || !options_.keeps_checkpoints) return;
  const bool is_known = cuts_.contains(written.step);
  if (end_step_ && !is_known && (written.step > *end_step_ || written.step <= lost_cuts_))
    return;                                        // of no use any more
  if (ended_cuts_.contains(written.step)) return;  // it comes late
  // Others said so before a restart. At its end the job orders no cut that others know of.
  if (!end_step_ && written.step <= lost_cuts_) return;
  Cut& cut = CutOf(written.step, outputs);
  if (cut.unwritten.erase(server) == 0) return;
  cut.status.Update(written.status);
  cut.files.insert(cut.files.end(), written.files.begin(), written.files.end());
  cut.took = std::max(cut.took, written.took);
  if (written.status.ok()) cut.training = written.training;
  if (!cut.unwritten.empty()) return;
  // Without decisions the scaler never changes.
  if (!cut.scaling && written.step < lost_scalings_) {
    cut.status.Update(GivenUp());
  } else if (!cut.scaling && decided_ > written.step) {
    cut.status.Update(absl::UnavailableError(absl::StrCat(
        "servers took so long that the loss scale of its step is gone, at step ",
        decided_, "; save less often, or to a faster disk")));
  }
  // A copy, since FinishCut ends the cut.
  const absl::Status status = cut.status;
  if (!status.ok()) return FinishCut(written.step, status, outputs);
  const Scaling scaling =
      cut.scaling.value_or(Scaling{decisions_.scaler(), decisions_.skipped()});
  Manifest manifest = {.job = spec_.name,
                       .name = {.run = beginning_.run, .step = written.step},
                       .push_codec = spec_.push_codec,
                       .publish_codec = spec_.publish_codec,
                       .declared = declared_->spec.training,
                       .training = cut.training,
                       .loss_scaler = scaling.scaler,
                       .skipped_steps = scaling.skipped,
                       .files = cut.files};
  outputs.push_back(CheckpointOrder{KeepCheckpoint{.job = id_,
                                                   .manifest = std::move(manifest),
                                                   .declared = declared_,
                                                   .keep = spec_.checkpoint.keep}});
}

// Of these some servers have said what they wrote, and others said it to the coordinator
// that is gone.
void Job::GiveUpLostCuts(CoordinatorOutputs& outputs) {
  while (!cuts_.empty() && cuts_.begin()->first <= lost_cuts_) {
    FinishCut(cuts_.begin()->first, GivenUp(), outputs);
  }
}

void Job::OnKept(const CheckpointKept& kept, absl::Duration now,
                 CoordinatorOutputs& outputs) {
  if (!cuts_.contains(kept.name.step)) return;
  saved_at_ = kept.status.ok() ? now : saved_at_;
  FinishCut(kept.name.step, kept.status, outputs);
}

void Job::FinishCut(uint64_t step, const absl::Status& status,
                    CoordinatorOutputs& outputs) {
  const auto cut = cuts_.extract(step).mapped();
  scalings_.erase(step);
  ended_cuts_.insert(step);
  if (ended_cuts_.size() > kMaxEndedCuts) ended_cuts_.erase(ended_cuts_.begin());
  const CheckpointName name = {.run = beginning_.run, .step = step};
  const std::string about =
      absl::StrCat("job '", spec_.name, "': checkpoint ", name.ToString());
  if (!status.ok()) {
    ++saved_.failed;
    saved_.error = absl::StrCat(name.ToString(), ": ", std::string(status.message()));
    Store(outputs);
    outputs.push_back(CheckpointOrder{DiscardCheckpoint{spec_.name, name}});
    const std::string why =
        absl::StrCat(" failed, earlier ones stay: ", std::string(status.message()));
    outputs.push_back(LogReason{absl::StrCat(about, why), LogReason::Level::kWarning});
    Say({.kind = EventKind::kCheckpoint,
         .what = absl::StrCat("checkpoint ", name.ToString(), why)},
        outputs);
    return SaveLast(outputs);
  }
  ++saved_.written;
  saved_.error.clear();
  saved_.latest = name.ToString();
  saved_.step = step;
  saved_.took = cut.took;
  saved_.bytes = 0;
  for (const CheckpointFile& file : cut.files) saved_.bytes += file.bytes;
  Store(outputs);
  outputs.push_back(
      LogReason{absl::StrCat(about, " is complete: ", saved_.bytes, " bytes in ",
                             absl::FormatDuration(cut.took))});
  Say({.kind = EventKind::kCheckpoint,
       .what = absl::StrCat("checkpoint ", name.ToString(), " is complete, ",
                            saved_.bytes, " bytes"),
       .took = cut.took},
      outputs);
  SaveLast(outputs);
}

}  // namespace syncline
