#include "server/coordinator/goal_watch.h"

#include <algorithm>
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
constexpr absl::Duration kBudgetPeriod = absl::Hours(1);
constexpr absl::Duration kShortBurn = absl::Minutes(5);
// One window may be chance; so many in a row are news.
constexpr int kInARow = 3;
// Windows that a trend is looked for in.
constexpr size_t kTrendWindows = 30;

std::string For(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  return seconds < 120 ? absl::StrFormat("%.0f s", seconds)
                       : absl::StrFormat("%.0f min", seconds / 60);
}

std::string Written(double value) { return absl::StrFormat("%.4g", value); }

bool HasEnded(const JobView& job) {
  return job.phase == "over" || job.phase == "failed" || job.phase == "saving";
}

}  // namespace

GoalWatch::GoalWatch(GoalSpec spec) : spec_(std::move(spec)) {
  for (const Goal& goal : spec_.goals) kept_.push_back({.goal = goal});
}

bool GoalWatch::IsDue(absl::Duration now) const {
  return !added_at_ || now - *added_at_ >= kSampleEvery;
}

// What a member did before it was seen first is not of this window.
GoalWatch::Figures GoalWatch::Take(const MemberView& member) {
  Figures now = {.incarnation = member.incarnation,
                 .steps = member.phases.steps,
                 .samples = member.samples,
                 .bytes = member.bytes,
                 .durations = member.durations};
  const auto known = known_.find(member.rank);
  const bool is_known =
      known != known_.end() && known->second.incarnation == now.incarnation &&
      known->second.steps <= now.steps && known->second.samples <= now.samples &&
      known->second.bytes <= now.bytes;
  if (is_known && open_) {
    const Figures& before = known->second;
    open_->lacks_figures |= now.steps > 1 && now.durations.total() == 0;
    uint64_t& steps = open_->steps[member.rank];
    steps += now.steps - before.steps;
    open_->most_steps = std::max(open_->most_steps, steps);
    open_->sum.steps += now.steps - before.steps;
    open_->sum.samples += now.samples - before.samples;
    open_->sum.bytes += now.bytes - before.bytes;
    open_->sum.durations.Add(now.durations.Since(before.durations));
  }
  return now;
}

std::vector<GoalNews> GoalWatch::Add(const JobView& job, absl::Duration now) {
  std::vector<GoalNews> news;
  const absl::Duration passed = now - added_at_.value_or(now);
  added_at_ = now;
  if (HasEnded(job)) {
    open_.reset();
    return news;
  }
  std::map<uint32_t, Figures> present;
  for (const MemberView& member : job.members) {
    if (member.phases.steps > 0) present[member.rank] = Take(member);
  }
  known_ = std::move(present);
  if (!open_) {
    if (!known_.empty()) open_ = Open{.since = now};
    return news;
  }
  if (job.expected_workers > 0) {
    open_->present_seconds += absl::ToDoubleSeconds(passed) * job.participants /
                              static_cast<double>(job.expected_workers);
  }
  const absl::Duration length = now - open_->since;
  const bool is_over = length >= kLongestWindow ||
                       (length >= kShortestWindow && open_->most_steps >= kStepsOfWindow);
  if (!is_over) return news;
  Close(now, news);
  open_ = Open{.since = now};
  return news;
}

// In a window in which no step ends, a step takes at least as long as the window. None: it is
// not known.
std::optional<double> GoalWatch::ValueOf(GoalKind kind, absl::Duration length) const {
  const double seconds = absl::ToDoubleSeconds(length);
  const Figures& sum = open_->sum;
  switch (kind) {
    case GoalKind::kSamplesPerSecond:
      if (open_->lacks_figures) return std::nullopt;
      return static_cast<double>(sum.samples) / seconds;
    case GoalKind::kStepP95: {
      if (open_->lacks_figures) return std::nullopt;
      const auto p95 = sum.durations.Quantile(0.95);
      return absl::ToDoubleMilliseconds(p95.value_or(length));
    }
    case GoalKind::kParticipation:
      return open_->present_seconds / seconds;
    case GoalKind::kWireMbPerStep:
      if (sum.steps == 0) return std::nullopt;
      return static_cast<double>(sum.bytes) / static_cast<double>(sum.steps) / 1e6;
  }
  return std::nullopt;
}

void GoalWatch::Close(absl::Duration now, std::vector<GoalNews>& news) {
  const absl::Duration length = now - open_->since;
  for (Kept& kept : kept_) {
    const std::optional<double> value = ValueOf(kept.goal.kind, length);
    if (!value) continue;
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

void GoalWatch::Judge(Kept& kept, const Window& window,
                      std::vector<GoalNews>& news) const {
  const std::string goal = absl::StrCat("goal ", kept.goal.Written());
  kept.in_a_row = window.is_met == kept.is_missed ? kept.in_a_row + 1 : 0;
  if (kept.in_a_row >= kInARow) {
    kept.in_a_row = 0;
    kept.is_missed = !kept.is_missed;
    const Window& first = kept.windows[kept.windows.size() - kInARow];
    const absl::Duration turned_at = first.end - first.length;
    const absl::Duration missed_for = turned_at - kept.missed_since;
    if (kept.is_missed) {
      kept.missed_since = turned_at;
      news.push_back({.what = absl::StrCat(goal, " is missed: ", Written(window.value),
                                           " for ", For(window.end - turned_at)),
                      .is_bad = true});
    } else {
      news.push_back({.what = absl::StrCat(goal, " is met again: ", Written(window.value),
                                           ", after ", For(missed_for)),
                      .took = missed_for});
    }
  }
  const double left = BudgetLeft(kept, window.end);
  if (!kept.is_spent && left <= 0) {
    news.push_back(
        {.what = absl::StrCat(goal, ": its error budget is spent; of the last hour ",
                              spec_.budget * 100, " % may be missed"),
         .is_bad = true});
  }
  kept.is_spent = kept.is_spent ? left < 0.5 : left <= 0;
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
    // Once half of what it went by is new.
    if (kept.is_warned && ++kept.quiet >= kTrendWindows / 2) kept.is_warned = false;
    return;
  }
  kept.quiet = 0;
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
                                    .met_seconds = kept.met_seconds,
                                    .missed_seconds = kept.missed_seconds});
    if (!kept.windows.empty()) view.now = kept.windows.back().value;
    if (kept.misses_at) {
      view.missed_in = std::max(*kept.misses_at - now, absl::ZeroDuration());
    }
  }
  return views;
}

}  // namespace syncline
