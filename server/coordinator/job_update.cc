// New options for a running job: they are checked, and take effect with its next epoch.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/status.h"
#include "comm/job/answers.h"
#include "comm/job/goals.h"
#include "server/coordinator/job.h"
#include "server/coordinator/mode_change.h"

namespace syncline {
namespace {

// Lists the settings that Update may change: "lr=0.1, momentum=0.9, schedule cosine
// total_steps=100".
std::string Changeable(const TrainingSettings& settings) {
  const auto written = absl::PairFormatter("=");
  return absl::StrCat(absl::StrJoin(settings.optimizer.options, ", ", written),
                      ", schedule ", settings.schedule.name, " ",
                      absl::StrJoin(settings.schedule.values, ", ", written), ", mode ",
                      FormatNamedOptions(settings.mode));
}

}  // namespace

absl::Status Job::CheckRuns() const {
  if (phase_ == Phase::kRunning && !saves_last_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job '", spec_.name, "' ",
                   saves_last_ ? "is at its end: " : "has not begun: ", reason_));
}

std::optional<uint64_t> Job::StalenessInForce() const {
  if (spec_.training.sync().kind != SyncMode::Kind::kSsp) return std::nullopt;
  return begun_.staleness.value_or(declared_->spec.training.sync().staleness);
}

absl::StatusOr<ChangedSettings> Job::Update(const UpdateJob& update,
                                            const ServerMemories& memory) {
  if (update.goals) {
    SYNCLINE_RETURN_IF_ERROR(CheckGoals(*update.goals, spec_.training.sync()));
  }
  if (update.answers) {
    SYNCLINE_RETURN_IF_ERROR(CheckAnswers(*update.answers, spec_));
  }
  if (!update.IsOfTraining() && (update.goals || update.answers)) {
    ChangedSettings changed = {.epoch = shown_epoch_};
    SetGoals(update, changed);
    return changed;
  }
  SYNCLINE_RETURN_IF_ERROR(CheckRuns());
  TrainingSettings next = spec_.training;
  next.optimizer.options = Merge(next.optimizer.options, update.optimizer);
  if (update.schedule) next.schedule = *update.schedule;
  if (update.mode) {
    JobSpec whole = declared_->spec;
    whole.training = next;
    SYNCLINE_ASSIGN_OR_RETURN(next.mode, ChangedMode(whole, *update.mode));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckChange(spec_.training, next, declared_->spec.Trained()));
  if (update.mode) {
    SYNCLINE_RETURN_IF_ERROR(
        places_.PlanIfItFits(spec_.name,
                             {.planned = declared_->spec.training.sync().staleness,
                              .staleness = next.sync().staleness},
                             memory));
  }
  Log(absl::StrCat("from ", Changeable(spec_.training), " to ", Changeable(next)));
  const TrainingSettings before = std::exchange(spec_.training, next);
  SayNewSettings(before);
  next_training_ = next;
  plan_ = PlanOf(next);
  change_reasons_.Add(EpochCause::kSettings, "new options");
  Store();
  MaybeChangeEpoch();
  // The epoch with the new options has begun, or follows the change that is under way.
  ChangedSettings changed = {
      .epoch = counters_.epochs.Of(spec_.name) + (next_training_ ? 1 : 0),
      .changes = ChangesSince(before)};
  SetGoals(update, changed);
  return changed;
}

// Goals change at once, since no step depends on them.
void Job::SetGoals(const UpdateJob& update, ChangedSettings& changed) {
  JobSettings next = spec_.settings;
  if (update.goals) next.goals = CanonicalGoals(*update.goals);
  if (update.answers) next.answers = CanonicalAnswers(*update.answers);
  const JobSettings before = std::exchange(spec_.settings, next);
  const auto say = [&](const char* name, const std::string& old, const std::string& now) {
    if (old == now) return;
    const std::string change = absl::StrCat(name, " from ", old, " to ", now);
    Report(EventKind::kSettings, change);
    changed.changes.push_back(change);
  };
  say("goals", CanonicalGoals(before.goals), CanonicalGoals(next.goals));
  say("answers", CanonicalAnswers(before.answers), CanonicalAnswers(next.answers));
  if (!(before == next)) Store();
}

}  // namespace syncline
