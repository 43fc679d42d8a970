// Measures how a job meets its goals (comm/job/goals.h). Each goal is judged in windows
// of time. A share of the time, the error budget, may miss the goal.
//
//   GoalWatch watch(*ParseGoals("step_p95_ms<=150"));
//   if (watch.IsDue(now)) for (const GoalNews& news : watch.Add(job.View(now), now)) say it
//   watch.View(now);
//
// A window ends after 10 s if some member made 20 steps in it. Otherwise it ends after a
// minute, once some member has ended a step in it or is late. A step is late if it has
// taken more than a minute, and three times as long as the steps before it. The first
// window is not judged, because members appear in it one by one.
//
// Steps do not end with windows, so a rate is not a window's samples over its length.
// Instead, each member's samples are divided by the duration of its steps, as it reports
// them. A step that is late counts with the time that it has taken so far.
//
// Windows feed the error budget of the last hour, and burn rates over the last five
// minutes and the last hour. A burn rate is the share of time that missed the goal over
// the budget (Google's Site Reliability Workbook, chapter 5, "Alerting on SLOs"). A rate
// of 1 over an hour spends the whole budget. Time before the watch began counts as met.
//
// A watch starts from scratch with its job, with new goals, and with a restart of the
// coordinator. Memory: an hour of windows, and the counters of each member.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/step_durations.h"
#include "comm/job/goals.h"
#include "server/coordinator/views.h"

namespace syncline {

// A message that is reported once.
struct GoalNews {
  std::string what = {};                              // a sentence
  std::optional<absl::Duration> took = std::nullopt;  // how long the goal was missed
  bool is_bad = false;
};

class GoalWatch {
 public:
  explicit GoalWatch(GoalSpec spec);

  // Whether a second has passed since the last Add.
  bool IsDue(absl::Duration now) const;
  std::vector<GoalNews> Add(const JobView& job, absl::Duration now);
  // The job is over: drops the open window and the predictions.
  void End();
  std::vector<GoalView> View(absl::Duration now) const;

 private:
  struct Member {
    uint32_t incarnation = 0;
    // As the member reported last.
    uint64_t steps = 0;
    uint64_t samples = 0;
    uint64_t bytes = 0;
    StepDurations durations = {};

    absl::Duration stepped_at = {};  // when its last step was seen
    absl::Duration usual = {};  // mean duration of its steps, in its last window with any
    absl::Duration counted =
        {};  // part of the late step that earlier windows have counted
    std::optional<double> rate = {};  // samples per second, in its last window
    // It runs an older release, which reports no samples and no durations.
    bool lacks_figures = false;
  };
  // The work of a member in the open window.
  struct Work {
    uint64_t steps = 0;
    uint64_t samples = 0;
    absl::Duration took = {};  // by all these steps
    absl::Duration time = {};  // the same, without what earlier windows have counted
  };
  struct Open {
    absl::Duration since = {};
    bool is_judged = false;
    std::map<uint32_t, Work> work = {};  // by rank
    uint64_t bytes = 0;
    StepDurations durations = {};
    absl::Duration present = {};   // integral over time of the participants
    absl::Duration expected = {};  // integral over time of the expected workers
  };
  struct Traffic {
    absl::Duration end = {};
    uint64_t bytes = 0;
    uint64_t steps = 0;
  };
  struct Window {
    absl::Duration end = {};
    absl::Duration length = {};
    double value = 0;
    bool is_met = false;
  };
  struct Kept {
    Goal goal = {};
    std::deque<Window> windows = {};    // of the last hour
    int in_a_row = 0;                   // last windows in a row that contradict is_missed
    absl::Duration turning_since = {};  // begin of the first of those
    bool is_missed = false;
    absl::Duration missed_since = {};
    std::optional<absl::Duration> met_since =
        {};                  // begin of the last time that it was met again
    bool is_silent = false;  // it had been met again shortly before this miss
    bool is_said = false;    // this miss was reported
    bool is_spent = false;   // the budget was spent; until half of it is back
    int in_sight = 0;        // last windows in a row that have the trend
    bool is_warned = false;  // the trend was reported
    size_t quiet = 0;        // windows since the trend was last seen
    double met_seconds = 0;  // since the watch began
    double missed_seconds = 0;
    std::optional<absl::Duration> misses_at = {};  // as predicted by the trend
  };

  // Adds what the member did since its last report to the open window. Returns its new
  // state.
  Member Take(const MemberView& member, absl::Duration now);
  bool IsLate(const Member& member, absl::Duration now) const;
  bool IsOver(absl::Duration now) const;
  // Sets the rate and usual step of each member from the window that ends.
  void NoteRates(absl::Duration now);
  std::optional<double> ValueOf(const Goal& goal, absl::Duration now) const;
  std::optional<double> Rate() const;
  std::optional<double> StepP95(double limit, absl::Duration now) const;
  std::optional<double> WirePerStep() const;
  void Close(absl::Duration now, std::vector<GoalNews>& news);
  void Judge(Kept& kept, const Window& window, std::vector<GoalNews>& news) const;
  void Turn(Kept& kept, const Window& window, std::vector<GoalNews>& news) const;
  void LookAhead(Kept& kept, absl::Duration now, std::vector<GoalNews>& news) const;
  double BurnRate(const Kept& kept, absl::Duration now, absl::Duration span) const;
  uint64_t MissedWindows(const Kept& kept, absl::Duration now) const;
  // Share of the last hour's budget that is left, 0 to 1.
  double BudgetLeft(const Kept& kept, absl::Duration now) const;

  const GoalSpec spec_;
  std::vector<Kept> kept_;
  std::map<uint32_t, Member> known_;  // members that have made steps, by rank
  std::deque<Traffic> traffic_;       // of the last windows
  std::optional<absl::Duration> added_at_;
  std::optional<Open> open_;
};

}  // namespace syncline
