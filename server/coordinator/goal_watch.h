// How a job keeps to its goals (comm/job/goals.h): judged in windows of time, of which a
// share, the budget, may miss.
//
//   GoalWatch watch(*ParseGoals("step_p95_ms<=150"));
//   if (watch.IsDue(now)) for (const GoalNews& news : watch.Add(job.View(now), now)) say it
//   watch.View(now);
//
// A window ends after 10 s with 20 steps or more, otherwise after a minute. It begins with
// the job's first step. What a window says of a goal goes into the error budget of the last
// hour and into burn rates: the share of time that was missed over the share that may be
// (Google's Site Reliability Workbook, chapter 5, "Alerting on SLOs"), of the last five minutes
// and of the last hour. Time before the job was watched missed nothing, so that one slow window
// at its begin alarms nobody. Rate 1 over an hour is the whole budget.
//
// It begins anew with its job, with other goals, and with the coordinator's process. Memory:
// an hour of windows, and the figures of each member.
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

// What is to be said once.
struct GoalNews {
  std::string what = {};                              // a sentence
  std::optional<absl::Duration> took = std::nullopt;  // that the goal was missed
  bool is_bad = false;
};

class GoalWatch {
 public:
  explicit GoalWatch(GoalSpec spec);

  // A second has passed since the last Add.
  bool IsDue(absl::Duration now) const;
  std::vector<GoalNews> Add(const JobView& job, absl::Duration now);
  std::vector<GoalView> View(absl::Duration now) const;

 private:
  struct Figures {
    uint32_t incarnation = 0;
    uint64_t steps = 0;
    uint64_t samples = 0;
    uint64_t bytes = 0;
    StepDurations durations = {};
  };
  // What the members did in the window that is open, together.
  struct Open {
    absl::Duration since = {};
    uint64_t most_steps = 0;  // of one member
    std::map<uint32_t, uint64_t> steps = {};
    Figures sum = {};
    double present_seconds = 0;  // participation, times seconds
    bool lacks_figures =
        false;  // a member of an older release says no samples and no durations
  };
  struct Window {
    absl::Duration end = {};
    absl::Duration length = {};
    double value = 0;
    bool is_met = false;
  };
  struct Kept {
    Goal goal = {};
    std::deque<Window> windows = {};  // of the last hour
    int in_a_row = 0;                 // windows that say the other thing than is_missed
    bool is_missed = false;
    absl::Duration missed_since = {};
    bool is_spent = false;   // the budget; until half of it is there again
    bool is_warned = false;  // of the trend
    size_t quiet = 0;        // windows since it was last seen
    double met_seconds = 0;  // all that was watched
    double missed_seconds = 0;
    std::optional<absl::Duration> misses_at = {};  // by the trend
  };

  // Adds what it did since it was known last, and says what is known of it now.
  Figures Take(const MemberView& member);
  std::optional<double> ValueOf(GoalKind kind, absl::Duration length) const;
  void Close(absl::Duration now, std::vector<GoalNews>& news);
  void Judge(Kept& kept, const Window& window, std::vector<GoalNews>& news) const;
  void LookAhead(Kept& kept, absl::Duration now, std::vector<GoalNews>& news) const;
  double BurnRate(const Kept& kept, absl::Duration now, absl::Duration span) const;
  // Of the hour's.
  double BudgetLeft(const Kept& kept, absl::Duration now) const;

  const GoalSpec spec_;
  std::vector<Kept> kept_;
  std::map<uint32_t, Figures> known_;  // members that made steps, by rank, as said last
  std::optional<absl::Duration> added_at_;
  std::optional<Open> open_;
};

}  // namespace syncline
