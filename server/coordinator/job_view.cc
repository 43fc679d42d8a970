// The status of a job.
#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/job/total_steps.h"
#include "server/coordinator/job.h"

namespace syncline {
namespace {

// "fp32@syncline.samples;bf16": how the model's tensors travel.
std::string WithoutBooks(const std::string& codec) {
  std::vector<std::string> parts = absl::StrSplit(codec, ';');
  const std::string books = absl::StrCat("@", kSamplersBooks);
  std::erase_if(parts,
                [&](const std::string& part) { return absl::EndsWith(part, books); });
  return absl::StrJoin(parts, ";");
}

}  // namespace

std::string_view JobPhaseName(JobPhase phase) {
  switch (phase) {
    case JobPhase::kWaiting:
      return "waiting";
    case JobPhase::kRunning:
      return "running";
    case JobPhase::kChanging:
      return "changing";
    case JobPhase::kSaving:
      return "saving";
    case JobPhase::kOver:
      return "over";
    case JobPhase::kFailed:
      return "failed";
  }
  return "";
}

std::ostream& operator<<(std::ostream& out, JobPhase phase) {
  return out << JobPhaseName(phase);
}

double CompressionFigures::ratio() const {
  if (pushed_value_bytes == 0) return 0;
  return static_cast<double>(pushed_values * sizeof(float)) /
         static_cast<double>(pushed_value_bytes);
}

// Returns the number of members that contribute to the step. This is not the number that
// is alive: a quorum closes steps without some, and new members begin with a later step.
uint32_t Job::Participants(uint64_t step) const {
  if (committed_.empty()) return 0;
  if (spec_.training.sync().is_async()) return 1;
  if (HasQuorum() && closed_) return static_cast<uint32_t>(closed_->incarnations.size());
  return static_cast<uint32_t>(std::ranges::count_if(
      committed_,
      [step](const MemberRecord& member) { return member.first_step <= step; }));
}

void Job::ViewProgress(JobView& view) const {
  view.participants = IsOver() ? 0 : Participants(view.step);
  view.pushed = workers_.pushed();
  view.epoch_changes = epoch_changes_;
  view.staleness = std::max(view.step, workers_.HighestStep()) - view.step;
}

void Job::ViewServers(JobView& view, const LostServers& lost) const {
  view.expected_servers =
      places_.empty() ? options_.expected_servers : static_cast<uint32_t>(places_.size());
  for (size_t place = 0; place < places_.size(); ++place) {
    const JobServer& server = places_[place];
    const bool is_attached = !IsOver() && IsHere(place) && !IsAwaited(server.server) &&
                             !lost.contains(server.server);
    if (is_attached) ++view.attached_servers;
    const auto known = server_phases_.find(server.server);
    if (known != server_phases_.end()) view.server_phases.insert(*known);
    if (!places_.Trains(place)) continue;  // it has nothing to record
    ++view.training_servers;
    const auto records = records_.find(server.server);
    if (records != records_.end()) view.records.insert(*records);
  }
  view.durability = spec_.durability();
  view.waits_for_servers = spec_.WaitsForServers();
  for (size_t place = 0; place < backups_.size(); ++place) {
    view.backups.push_back(backups_.View(place, places_[place].server));
    view.backups.back().journal_lost = journals_.WhyLost(place);
  }
}

// What the program says goes first: a schedule may be longer or shorter than its training.
// In mode asp schedules count the contributions of all workers, so they tell nothing.
uint64_t Job::TotalSteps() const {
  const uint64_t said = ParseTotalSteps(spec_.settings.total_steps).value_or(0);
  if (said > 0 || spec_.training.sync().is_async()) return said;
  const OptionValues& schedule = spec_.training.schedule.values;
  const auto updates = schedule.find("total_steps");
  if (updates == schedule.end()) return 0;
  return static_cast<uint64_t>(updates->second) * spec_.training.accumulate_steps;
}

JobView Job::View(absl::Duration now, const LostServers& lost) const {
  const std::string lost_servers = WhichServersAreLost(now, lost);
  JobView view{.job = id_,
               .name = spec_.name,
               .run_id = run_id_,
               .reason = reason_,
               .parameters = parameters_,
               .expected_workers = spec_.workers,
               .push_codec = WithoutBooks(spec_.settings.push_codec),
               .publish_codec = WithoutBooks(spec_.settings.publish_codec),
               .mode = FormatNamedOptions(spec_.training.mode)};
  view.phase = failed_                     ? JobPhase::kFailed
               : phase_ == Phase::kOver    ? JobPhase::kOver
               : homecoming_.has_value()   ? JobPhase::kWaiting
               : IsEnding()                ? JobPhase::kSaving
               : LacksServers()            ? JobPhase::kWaiting
               : !lost_servers.empty()     ? JobPhase::kWaiting
               : change_.has_value()       ? JobPhase::kChanging
               : phase_ == Phase::kRunning ? JobPhase::kRunning
                                           : JobPhase::kWaiting;
  if (phase_ == Phase::kRunning && !stall_.held_up().empty()) {
    view.reason = stall_.held_up();
  }
  // This is the reason of the shown epoch. An epoch that is being prepared has none yet.
  view.epoch = shown_epoch_;
  if (homecoming_) view.reason = WhoIsAwaited();
  if (!lost_servers.empty()) view.reason = lost_servers;
  if (LacksServers()) view.reason = missing_.Text(now, places_);
  if (LacksServers() && !lost_servers.empty()) {
    absl::StrAppend(&view.reason, "; ", lost_servers);
  }
  view.step = end_step_.value_or(workers_.LowestStep());
  view.total_steps = TotalSteps();
  const auto since = homecoming_ ? homecoming_->since : std::nullopt;
  view.members = workers_.View(now, since.value_or(now));
  ViewServers(view, lost);
  ViewProgress(view);
  view.recoveries = recoveries_.View(now);
  view.moves = moves_;
  view.pushes = pushes_;
  view.checkpoint = cuts_.View(now);
  view.checkpoint.is_under_way |= cut_wanted_ || IsEnding();
  view.learning_rate = plan_->JobLearningRate(view.step);
  view.loss_scale = decisions_.scaling().scaler.scale;
  view.skipped_steps = decisions_.scaling().skipped;
  view.left_out = left_out_;
  view.gradient_norm = decisions_.gradient_norm();
  for (const auto& [step, mean] : losses_.means()) {
    view.loss = mean.value();
    view.loss_curve.push_back({.step = step,
                               .learning_rate = plan_->JobLearningRate(step),
                               .loss = *view.loss});
  }
  if (spec_.training.schedule.name != "range_test") view.loss_curve.clear();
  return view;
}

}  // namespace syncline
