#include "server/coordinator/goal_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/coordinator/goal_trend.h"

namespace syncline {
namespace {

constexpr absl::Duration kSampleEvery = absl::Seconds(1);
constexpr absl::Duration kShortestWindow = absl::Seconds(10);
constexpr absl::Duration kLongestWindow = absl::Minutes(1);
constexpr uint64_t kStepsOfWindow = 20;
// A step that takes this many times as long as those before it is late.
constexpr int kLateFactor = 3;
// Steps of each member over which traffic is measured. One step more or less changes the
// result by 1 %.
constexpr uint64_t kStepsOfTraffic = 100;
constexpr absl::Duration kBudgetPeriod = absl::Hours(1);
constexpr absl::Duration kShortBurn = absl::Minutes(5);
// One missed window may be chance. This many in a row are reported.
constexpr int kInARow = 3;
constexpr absl::Duration kQuiet = absl::Minutes(10);
// Number of windows in which a trend is looked for.
constexpr size_t kTrendWindows = 30;

std::string For(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  return seconds < 120 ? absl::StrFormat("%.0f s", seconds)
                       : absl::StrFormat("%.0f min", seconds / 60);
}

std::string Written(double value) { return absl::StrFormat("%.6g", value); }

bool HasEnded(const JobView& job) {
  return job.IsOver() || job.phase == JobPhase::kSaving;
}

}  // namespace

GoalWatch::GoalWatch(GoalSpec spec) : spec_(std::move(spec)) {
  for (const Goal& goal : spec_.goals) kept_.push_back({.goal = goal});
}

bool GoalWatch::IsDue(absl::Duration now) const {
  return !added_at_ || now - *added_at_ >= kSampleEvery;
}

// The window excludes what a member did before it was first seen.
GoalWatch::Member GoalWatch::Take(const MemberView& member, absl::Duration now) {
  Member next = {.incarnation = member.incarnation,
                 .steps = member.phases.steps,
                 .samples = member.samples,
                 .bytes = member.bytes,
                 .durations = member.durations,
                 .stepped_at = now};
  next.lacks_figures = next.steps > 1 && next.durations.total() == 0;
  const auto known = known_.find(member.rank);
  const bool is_known =
      known != known_.end() && known->second.incarnation == next.incarnation &&
      known->second.steps <= next.steps && known->second.samples <= next.samples &&
      known->second.bytes <= next.bytes;
  if (!is_known) return next;
  const Member& before = known->second;
  const uint64_t steps = next.steps - before.steps;
  next.usual = before.usual;
  next.rate = before.rate;
  if (steps == 0) {
    next.stepped_at = before.stepped_at;
    next.counted = before.counted;
  }
  if (!open_) return next;
  const StepDurations durations = next.durations.Since(before.durations);
  Work& work = open_->work[member.rank];
  work.steps += steps;
  work.samples += next.samples - before.samples;
  if (steps > 0) {
    work.took += durations.sum();
    work.time += std::max(durations.sum() - before.counted, absl::ZeroDuration());
  }
  open_->bytes += next.bytes - before.bytes;
  open_->durations.Add(durations);
  return next;
}

bool GoalWatch::IsLate(const Member& member, absl::Duration now) const {
  return now - member.stepped_at > std::max(kLongestWindow, kLateFactor * member.usual);
}

bool GoalWatch::IsOver(absl::Duration now) const {
  const absl::Duration length = now - open_->since;
  uint64_t most_steps = 0;
  for (const auto& [rank, work] : open_->work) {
    most_steps = std::max(most_steps, work.steps);
  }
  if (length >= kShortestWindow && most_steps >= kStepsOfWindow) return true;
  if (length < kLongestWindow) return false;
  return most_steps > 0 || known_.empty() ||
         std::ranges::any_of(
             known_, [&](const auto& entry) { return IsLate(entry.second, now); });
}

std::vector<GoalNews> GoalWatch::Add(const JobView& job, absl::Duration now) {
  std::vector<GoalNews> news;
  const absl::Duration passed = now - added_at_.value_or(now);
  added_at_ = now;
  if (HasEnded(job)) {
    End();
    return news;
  }
  std::map<uint32_t, Member> present;
  for (const MemberView& member : job.members) {
    if (member.phases.steps > 0) present[member.rank] = Take(member, now);
  }
  known_ = std::move(present);
  if (!open_) {
    if (!known_.empty()) open_ = Open{.since = now};
    return news;
  }
  open_->present += passed * static_cast<int64_t>(job.participants);
  open_->expected += passed * static_cast<int64_t>(job.expected_workers);
  if (!IsOver(now)) return news;
  Close(now, news);
  open_ = Open{.since = now, .is_judged = true};
  return news;
}

void GoalWatch::End() {
  open_.reset();
  for (Kept& kept : kept_) kept.misses_at.reset();
}

void GoalWatch::NoteRates(absl::Duration now) {
  for (auto& [rank, member] : known_) {
    const Work& work = open_->work[rank];
    if (work.steps > 0) member.usual = work.took / static_cast<int64_t>(work.steps);
    absl::Duration time = work.time;
    if (IsLate(member, now)) {
      const absl::Duration waited = now - member.stepped_at;
      time += waited - std::exchange(member.counted, waited);
    }
    if (time > absl::ZeroDuration()) {
      member.rate = static_cast<double>(work.samples) / absl::ToDoubleSeconds(time);
    }
  }
}

// A member in the middle of a step is assumed to have its rate of the window before.
std::optional<double> GoalWatch::Rate() const {
  double rate = 0;
  for (const auto& [rank, member] : known_) {
    if (member.lacks_figures || !member.rate) return std::nullopt;
    rate += *member.rate;
  }
  return rate;
}

// A late step counts with the time that it has taken so far. If that is all that is
// known, and it is below the limit, the goal is neither met nor missed.
std::optional<double> GoalWatch::StepP95(double limit, absl::Duration now) const {
  StepDurations durations = open_->durations;
  const bool has_steps = durations.total() > 0;
  for (const auto& [rank, member] : known_) {
    if (member.lacks_figures) return std::nullopt;
    if (IsLate(member, now)) durations.Add(now - member.stepped_at);
  }
  const auto p95 = durations.Quantile(0.95);
  if (!p95) return std::nullopt;
  const double milliseconds = absl::ToDoubleMilliseconds(*p95);
  if (!has_steps && milliseconds <= limit) return std::nullopt;
  return milliseconds;
}

// The bytes of the step under way are included, so few steps say little.
std::optional<double> GoalWatch::WirePerStep() const {
  uint64_t bytes = 0;
  uint64_t steps = 0;
  for (const Traffic& window : traffic_) {
    bytes += window.bytes;
    steps += window.steps;
  }
  if (traffic_.back().steps == 0) return std::nullopt;
  return static_cast<double>(bytes) / static_cast<double>(steps) / 1e6;
}

// Empty: the value is not known.
std::optional<double> GoalWatch::ValueOf(const Goal& goal, absl::Duration now) const {
  switch (goal.kind) {
    case GoalKind::kSamplesPerSecond:
      return Rate();
    case GoalKind::kStepP95:
      return StepP95(goal.limit, now);
    case GoalKind::kParticipation:
      if (open_->expected <= absl::ZeroDuration()) return std::nullopt;
      // Rounded to what people write: 9 of 10 are 0.9.
      return std::round(absl::FDivDuration(open_->present, open_->expected) * 1e9) / 1e9;
    case GoalKind::kWireMbPerStep:
      return WirePerStep();
  }
  return std::nullopt;
}

void GoalWatch::Close(absl::Duration now, std::vector<GoalNews>& news) {
  Traffic traffic = {.end = now, .bytes = open_->bytes, .steps = 0};
  for (const auto& [rank, work] : open_->work) traffic.steps += work.steps;
  traffic_.push_back(traffic);
  uint64_t steps = 0;
  for (const Traffic& window : traffic_) steps += window.steps;
  const uint64_t enough = kStepsOfTraffic * known_.size();
  while (traffic_.size() > 1 && (steps - traffic_.front().steps >= enough ||
                                 traffic_.front().end <= now - kBudgetPeriod)) {
    steps -= traffic_.front().steps;
    traffic_.pop_front();
  }
  NoteRates(now);
  if (!open_->is_judged) return;
  const absl::Duration length = now - open_->since;
  for (Kept& kept : kept_) {
    const std::optional<double> value = ValueOf(kept.goal, now);
    if (!value) {
      kept.in_a_row = 0;
      kept.in_sight = 0;
      kept.misses_at.reset();
      continue;
    }
    const Window window = {.end = now,
                           .length = length,
                           .value = *value,
                           .is_met = kept.goal.IsMetBy(*value)};
    kept.windows.push_back(window);
    while (kept.windows.front().end <= now - kBudgetPeriod) kept.windows.pop_front();
    (window.is_met ? kept.met_seconds : kept.missed_seconds) +=
        absl::ToDoubleSeconds(length);
    Judge(kept, window, news);
    LookAhead(kept, now, news);
  }
}

// Reports that a goal is missed, or is met again. A goal that changes often is reported
// once, so that its events do not displace those of other kinds.
void GoalWatch::Turn(Kept& kept, const Window& window,
                     std::vector<GoalNews>& news) const {
  kept.is_missed = !kept.is_missed;
  if (kept.is_missed) {
    kept.missed_since = kept.turning_since;
    kept.is_silent = kept.met_since && kept.missed_since - *kept.met_since < kQuiet;
    return;
  }
  kept.met_since = kept.turning_since;
  const absl::Duration missed_for = *kept.met_since - kept.missed_since;
  if (!std::exchange(kept.is_said, false)) return;
  news.push_back({.what = absl::StrCat("goal ", kept.goal.Written(),
                                       " is met again: ", Written(window.value),
                                       ", after ", For(missed_for)),
                  .took = missed_for});
}

void GoalWatch::Judge(Kept& kept, const Window& window,
                      std::vector<GoalNews>& news) const {
  const std::string goal = absl::StrCat("goal ", kept.goal.Written());
  if (window.is_met != kept.is_missed) {
    kept.in_a_row = 0;
  } else if (kept.in_a_row++ == 0) {
    kept.turning_since = window.end - window.length;
  }
  if (kept.in_a_row >= kInARow) {
    kept.in_a_row = 0;
    Turn(kept, window, news);
  }
  const absl::Duration missed_for = window.end - kept.missed_since;
  if (kept.is_missed && !kept.is_said && (!kept.is_silent || missed_for >= kQuiet)) {
    kept.is_said = true;
    news.push_back({.what = absl::StrCat(goal, " is missed: ", Written(window.value),
                                         " for ", For(missed_for)),
                    .is_bad = true});
  }
  const double left = BudgetLeft(kept, window.end);
  // One missed window of a minute exceeds the usual budget, but may be chance.
  const bool is_spent = left <= 0 && MissedWindows(kept, window.end) > 1;
  if (!kept.is_spent && is_spent) {
    news.push_back(
        {.what = absl::StrCat(goal, ": its error budget is spent; it may be missed in ",
                              spec_.budget * 100, " % of an hour"),
         .is_bad = true});
  }
  kept.is_spent = kept.is_spent ? left < 0.5 : is_spent;
}

void GoalWatch::LookAhead(Kept& kept, absl::Duration now,
                          std::vector<GoalNews>& news) const {
  std::vector<TrendPoint> points;
  const size_t count = std::min(kept.windows.size(), kTrendWindows);
  for (size_t i = kept.windows.size() - count; i < kept.windows.size(); ++i) {
    points.push_back({.seconds = absl::ToDoubleSeconds(kept.windows[i].end),
                      .value = kept.windows[i].value});
  }
  const std::optional<double> seconds =
      kept.is_missed ? std::nullopt : SecondsToMiss(points, kept.goal);
  kept.misses_at.reset();
  if (!seconds) {
    kept.in_sight = 0;
    // A new warning is possible once half of the windows are new.
    if (kept.is_warned && ++kept.quiet >= kTrendWindows / 2) kept.is_warned = false;
    return;
  }
  kept.quiet = 0;
  if (++kept.in_sight < kInARow) return;
  kept.misses_at = now + absl::Seconds(*seconds);
  if (std::exchange(kept.is_warned, true)) return;
  news.push_back(
      {.what = absl::StrCat(
           "goal ", kept.goal.Written(), " will be missed in about ",
           For(absl::Seconds(*seconds)), " at this pace: ", Written(points.back().value),
           " now, ", Written(points.front().value), " ",
           For(absl::Seconds(points.back().seconds - points.front().seconds)), " ago"),
       .is_bad = true});
}

double GoalWatch::BurnRate(const Kept& kept, absl::Duration now,
                           absl::Duration span) const {
  absl::Duration missed;
  for (const Window& window : kept.windows) {
    if (window.is_met || window.end <= now - span) continue;
    missed += std::min(window.length, window.end - (now - span));
  }
  return absl::FDivDuration(missed, span) / spec_.budget;
}

uint64_t GoalWatch::MissedWindows(const Kept& kept, absl::Duration now) const {
  return static_cast<uint64_t>(
      std::ranges::count_if(kept.windows, [&](const Window& window) {
        return !window.is_met && window.end > now - kBudgetPeriod;
      }));
}

double GoalWatch::BudgetLeft(const Kept& kept, absl::Duration now) const {
  return std::clamp(1 - BurnRate(kept, now, kBudgetPeriod), 0.0, 1.0);
}

std::vector<GoalView> GoalWatch::View(absl::Duration now) const {
  std::vector<GoalView> views;
  for (const Kept& kept : kept_) {
    GoalView& view =
        views.emplace_back(GoalView{.goal = kept.goal,
                                    .is_missed = kept.is_missed,
                                    .budget = spec_.budget,
                                    .budget_left = BudgetLeft(kept, now),
                                    .burn_rate_5m = BurnRate(kept, now, kShortBurn),
                                    .burn_rate_1h = BurnRate(kept, now, kBudgetPeriod),
                                    .missed_windows = MissedWindows(kept, now),
                                    .met_seconds = kept.met_seconds,
                                    .missed_seconds = kept.missed_seconds});
    if (!kept.windows.empty()) {
      const Window& last = kept.windows.back();
      view.now = last.value;
      view.now_age = now - last.end + last.length;
    }
    if (kept.misses_at) {
      view.missed_in = std::max(*kept.misses_at - now, absl::ZeroDuration());
    }
  }
  return views;
}

}  // namespace syncline
