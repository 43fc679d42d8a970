// The log lines and events of a job (events.h).
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "comm/base/limits.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "server/coordinator/job.h"

namespace syncline {
namespace {

// Limits on what launchers report: "signal 9 (Killed)", and the last output of a program.
constexpr size_t kMaxExitBytes = 100;
constexpr size_t kMaxWordsBytes = 500;

// Returns "onebit" for "onebit: wire 0.9 GB/s, 2.1 ms against 9.8 ms dense". Empty: the
// codec is only tried for a step, which is no choice.
std::string_view ChosenCodec(std::string_view choice) {
  if (choice.find(": tried for a step") != std::string_view::npos) return "";
  return choice.substr(0, choice.find(':'));
}

std::string FromTo(double from, double to) {
  const std::string old = absl::StrCat(from);
  const std::string now = absl::StrCat(to);
  // Shows enough digits to tell the two apart.
  if (old == now) return absl::StrFormat("from %.17g to %.17g", from, to);
  return absl::StrCat("from ", old, " to ", now);
}

}  // namespace

void Job::Log(const std::string& text, LogReason::Level level) const {
  outbox_.Log(absl::StrCat("job '", spec_.name, "': ", text), level);
}

void Job::Report(EventKind kind, const std::string& what, LogReason::Level level) const {
  Log(what, level);
  Say({.kind = kind, .what = what});
}

void Job::Say(CoordinatorEvent event) const {
  event.job = id_;
  event.job_name = spec_.name;
  event.step = furthest_step_;
  outbox_.Add(std::move(event));
}

std::vector<std::string> Job::ChangesSince(const TrainingSettings& before) const {
  const TrainingSettings& after = spec_.training;
  std::vector<std::string> changes;
  // An option that was not given had its default.
  const std::vector<OptionSpec> options = OptionsOf(after.optimizer.name);
  for (const auto& [key, value] : after.optimizer.options) {
    const double old = OptionOr(options, before.optimizer.options, key);
    if (old != value) changes.push_back(absl::StrCat(key, " ", FromTo(old, value)));
  }
  if (!(before.schedule == after.schedule)) {
    changes.push_back(absl::StrCat("schedule from ", FormatNamedOptions(before.schedule),
                                   " to ", FormatNamedOptions(after.schedule)));
  }
  if (!(before.mode == after.mode)) {
    changes.push_back(absl::StrCat("mode from ", FormatNamedOptions(before.mode), " to ",
                                   FormatNamedOptions(after.mode)));
  }
  return changes;
}

void Job::SayNewSettings(const TrainingSettings& before) const {
  const std::vector<std::string> changes = ChangesSince(before);
  Say({.kind = EventKind::kSettings,
       .what = changes.empty() ? "nothing changed: all options have these values already"
                               : absl::StrJoin(changes, "; ")});
}

void Job::SayChoice(uint32_t rank, const std::string& choice) {
  std::string& known = workers_.at(rank).codec;
  const std::string_view chosen = ChosenCodec(choice);
  if (chosen.empty() || chosen == known) return;
  known = std::string(chosen);
  Say({.kind = EventKind::kCodec,
       .what = absl::StrCat(workers_.Named(rank), " chooses ", choice)});
}

absl::Status Job::CheckReport(const std::string& run_id,
                              const std::vector<uint32_t>& ranks) const {
  if (run_id != run_id_) {
    return absl::NotFoundError(absl::StrCat(
        "job '", spec_.name, "' belongs to another run, whose --run-id is not '",
        Printable(run_id, kMaxJobNameBytes), "'"));
  }
  for (const uint32_t rank : ranks) {
    if (rank < kMaxWorkers) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", rank, ", allowed are 0 to ", kMaxWorkers - 1));
  }
  return absl::OkStatus();
}

absl::Status Job::OnExit(const WorkerExit& exit) const {
  SYNCLINE_RETURN_IF_ERROR(CheckReport(exit.run_id, {exit.rank}));
  const auto add = [](const char* before, const std::string& words, size_t most) {
    return words.empty() ? "" : absl::StrCat(before, Printable(words, most));
  };
  Say({.kind = EventKind::kExit,
       .what =
           absl::StrCat("rank ", exit.rank, " died", add(": ", exit.how, kMaxExitBytes),
                        add(", ", exit.then, kMaxExitBytes),
                        add("; it said: ", exit.said, kMaxWordsBytes))});
  return absl::OkStatus();
}

absl::Status Job::OnPushes(const TrainJobPushes& pushes) {
  SYNCLINE_RETURN_IF_ERROR(CheckReport(pushes.run_id, {}));
  const bool is_new_launcher =
      pushes.sent < reported_pushes_.sent || pushes.failed < reported_pushes_.failed;
  if (is_new_launcher) reported_pushes_ = {};
  if (!pushes_) pushes_.emplace();
  pushes_->sent += pushes.sent - reported_pushes_.sent;
  pushes_->failed += pushes.failed - reported_pushes_.failed;
  reported_pushes_ = {.sent = pushes.sent, .failed = pushes.failed};
  return absl::OkStatus();
}

void Job::SayStalls(absl::Duration now) {
  const std::string& held_up = stall_.held_up();
  if (held_up.empty() != held_up_since_.has_value()) return;
  if (!held_up.empty()) {
    held_up_since_ = now;
    return Say({.kind = EventKind::kStall, .what = held_up});
  }
  const absl::Duration took = now - *std::exchange(held_up_since_, std::nullopt);
  Say({.kind = EventKind::kStall,
       .what = absl::StrFormat("no longer held up, after %.0f s more",
                               absl::ToDoubleSeconds(took)),
       .took = took});
}

}  // namespace syncline
