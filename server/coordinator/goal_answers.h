// What the coordinator does by itself when a job misses its goals, and what keeps it from
// doing so (comm/job/answers.h, docs/goals.md).
//
//   GoalAnswers answers(*ParseAnswers("exclude_straggler"));
//   const AnswerVerdict verdict = answers.Look(job, goals, now);    // every second
//   if (verdict.answer) carry it out; answers.Gave(*verdict.answer, now);
//
// An answer is for a goal of speed (samples_per_s, step_p95_ms) that was missed in its last
// window, and that is missed of late or burns its budget as fast as makes an alert.
//
//   exclude_straggler  one worker was the slowest by `factor` for `after`
//                      (straggler_watch.h), and without it that goal would be closer
//   staleness          of mode ssp, with no such worker, while members wait for each other
//
// What keeps it from harm: answers are `pause` apart, and when it is over each is judged by
// its goal, in a window that began after it. One that brought nothing was the wrong one: no
// other of its kind for an hour. Exclusions are `per_hour` at most and leave `min_workers`
// members. What an earlier life of the coordinator did counts as done just now, and an
// exclusion as one that brought nothing. A job that stands still, changes its epoch, waits
// for anybody or has a silent member is left alone, and so is one without goals.
//
// Thread safety: none; pure, but for what it remembers.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "comm/job/answers.h"
#include "comm/job/goals.h"
#include "server/coordinator/straggler_watch.h"
#include "server/coordinator/views.h"

namespace syncline {

struct Answer {
  AnswerKind kind = AnswerKind::kExcludeStraggler;
  uint32_t rank = 0;  // whom it excludes
  uint32_t incarnation = 0;
  uint64_t staleness = 0;  // from now on
  std::string why =
      {};            // "its own part of a step …; goal step_p95_ms<=150 is missed: 412"
  Goal goal = {};    // for which it is
  double value = 0;  // of that goal
};

// What is to be said once.
struct AnswerNews {
  std::string what = {};
  bool is_bad = false;
};

struct AnswerVerdict {
  std::optional<Answer> answer = std::nullopt;
  std::vector<AnswerNews> news = {};
};

class GoalAnswers {
 public:
  explicit GoalAnswers(AnswerSpec spec) : spec_(spec), stragglers_(spec.factor) {}

  // What an earlier life did, at times that are not known.
  void Resume(uint32_t exclusions, absl::Duration now);
  // What was done stays done, and its effect is still to be seen.
  void Set(AnswerSpec spec);

  AnswerVerdict Look(const JobView& job, const std::vector<GoalView>& goals,
                     absl::Duration now);
  void Gave(const Answer& answer, absl::Duration now);
  // It could not be: for an hour that worker is not excluded, and of another kind of answer
  // there is no other one.
  void Refused(const Answer& answer, const std::string& why, absl::Duration now);

  AnswersView View(absl::Duration now) const;

 private:
  struct Last {
    Answer answer = {};
    absl::Duration at = {};
    bool is_judged = false;
  };
  struct Bar {
    absl::Duration until = {};
    std::string why = {};
  };
  struct Need {
    const GoalView* goal = nullptr;
    std::string what = {};  // "goal step_p95_ms<=150 is missed: 412"
  };

  void JudgeLast(const std::vector<GoalView>& goals, absl::Duration now,
                 std::vector<AnswerNews>& news);
  // Empty: it may be excluded.
  std::string WhyNotExclude(const JobView& job, const std::vector<Need>& needs,
                            absl::Duration now) const;
  std::optional<Answer> Exclude(const JobView& job, const std::vector<Need>& needs,
                                absl::Duration now, std::vector<AnswerNews>& news);
  std::optional<Answer> Loosen(const JobView& job, const std::vector<Need>& needs,
                               absl::Duration now);
  std::optional<Bar> BarOf(AnswerKind kind, absl::Duration now) const;

  AnswerSpec spec_;
  StragglerWatch stragglers_;
  std::optional<Last> last_;
  std::optional<absl::Duration> paused_since_;
  std::deque<absl::Duration> excluded_at_;  // in the last hour
  std::array<Bar, kAnswerKinds> bars_ = {};
  std::map<std::pair<uint32_t, uint32_t>, Bar> not_excluded_;  // by rank and incarnation
  std::array<uint64_t, kAnswerKinds> given_ = {};
  std::optional<absl::Duration> withheld_said_;
  std::string state_ = "no window of time is over yet";
};

}  // namespace syncline
