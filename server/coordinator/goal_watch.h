// How a job keeps to its goals (comm/job/goals.h): judged in windows of time, of which a
// share, the budget, may miss.
//
//   GoalWatch watch(*ParseGoals("step_p95_ms<=150"));
//   if (watch.IsDue(now)) for (const GoalNews& news : watch.Add(job.View(now), now)) say it
//   watch.View(now);
//
// A window ends after 10 s with 20 steps or more, otherwise after a minute, once a step has
// ended in it or one is late: it has taken more than a minute, and three times as long as
// steps before it. The first window, of members that are seen one by one, is not judged.
//
// Windows do not end when steps do, so a rate is not what was counted in a window over its
// length: each member's samples are divided by the time that its steps took, as it says
// itself, and a step that is late counts as far as it has come.
//
// What a window says of a goal goes into the error budget of the last hour and into burn
// rates: the share of time that was missed over the share that may be (Google's Site
// Reliability Workbook, chapter 5, "Alerting on SLOs"), of the last five minutes and of the
// last hour. Time before the job was watched missed nothing. Rate 1 over an hour is the whole
// budget.
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
  // The job is over: no window is open, and no trend leads anywhere.
  void End();
  std::vector<GoalView> View(absl::Duration now) const;

 private:
  struct Member {
    uint32_t incarnation = 0;
    // As it said last.
    uint64_t steps = 0;
    uint64_t samples = 0;
    uint64_t bytes = 0;
    StepDurations durations = {};

    absl::Duration stepped_at = {};   // when its last step was seen
    absl::Duration usual = {};        // length of its steps, in its last window with any
    absl::Duration counted = {};      // of the step that is late, in earlier windows
    std::optional<double> rate = {};  // samples per second, in its last window
    bool lacks_figures = false;  // an older release: it says no samples and no durations
  };
  // What a member did in the window that is open.
  struct Work {
    uint64_t steps = 0;
    uint64_t samples = 0;
    absl::Duration took = {};  // all these steps
    absl::Duration time = {};  // of that, what no earlier window has counted
  };
  struct Open {
    absl::Duration since = {};
    bool is_judged = false;
    std::map<uint32_t, Work> work = {};  // by rank
    uint64_t bytes = 0;
    StepDurations durations = {};
    absl::Duration present = {};   // times members that took part
    absl::Duration expected = {};  // times members that were to
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
    int in_a_row = 0;                   // windows that say the other thing than is_missed
    absl::Duration turning_since = {};  // the first of those
    bool is_missed = false;
    absl::Duration missed_since = {};
    std::optional<absl::Duration> met_since = {};  // again
    bool is_silent = false;  // it was met again a short while before
    bool is_said = false;    // that it is missed
    bool is_spent = false;   // the budget; until half of it is there again
    int in_sight = 0;        // windows in a row that have the trend
    bool is_warned = false;  // of it
    size_t quiet = 0;        // windows since it was last seen
    double met_seconds = 0;  // all that was watched
    double missed_seconds = 0;
    std::optional<absl::Duration> misses_at = {};  // by the trend
  };

  // Adds what it did since it was known last, and says what is known of it now.
  Member Take(const MemberView& member, absl::Duration now);
  bool IsLate(const Member& member, absl::Duration now) const;
  bool IsOver(absl::Duration now) const;
  // Of the window that ends: notes each member's rate.
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
  // Of the hour's.
  double BudgetLeft(const Kept& kept, absl::Duration now) const;

  const GoalSpec spec_;
  std::vector<Kept> kept_;
  std::map<uint32_t, Member> known_;  // members that made steps, by rank
  std::deque<Traffic> traffic_;       // of the last windows
  std::optional<absl::Duration> added_at_;
  std::optional<Open> open_;
};

}  // namespace syncline
