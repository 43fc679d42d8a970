// The automatic answers of the coordinator to missed goals of a job, and their limits
// (comm/job/answers.h, docs/goals.md).
//
//   GoalAnswers answers(*ParseAnswers("exclude_straggler"));
//   const AnswerVerdict verdict = answers.Look(job, goals, now);    // every second
//   if (verdict.answer) carry it out; answers.Gave(*verdict.answer, now);
//
// An answer is given for a goal of speed (samples_per_s, step_p95_ms) that was missed in
// its last window. The goal must also count as missed, or burn its error budget at the
// rate of an alert. There are three kinds of answer:
//
//   exclude_straggler  One worker was the slowest by `factor` for `after`
//                      (straggler_watch.h), and the goal would be closer without it.
//   staleness          Mode ssp: no such worker, but members wait for each other.
//   add_server         No such worker, and a server serves two shares of the job while
//                      another one stands by, to which one of them can move;
//                      members wait for a good part of a step.
//
// Limits: answers are `pause` apart. After the pause each is judged by its goal, in a
// window that began after the answer. If it did not help, no other answer of its kind is
// given for an hour. At most `per_hour` workers are excluded per hour, and `min_workers`
// members stay. No answer is given while the job stands still, changes its epoch, waits
// for members or servers, or has a silent member, nor to a job without goals of speed.
//
// After a restart the coordinator counts earlier answers as given just now, and earlier
// exclusions as not helpful.
//
// Thread safety: none.
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
  uint32_t rank = 0;  // of the excluded worker
  uint32_t incarnation = 0;
  uint64_t staleness = 0;  // the new value
  std::string why =
      {};            // "its own part of a step …; goal step_p95_ms<=150 is missed: 412"
  Goal goal = {};    // the goal that it is given for
  double value = 0;  // of that goal, when the answer was given
};

// A message that is reported once.
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

  // Notes what the coordinator did before a restart, at unknown times.
  void Resume(uint32_t exclusions, absl::Duration now);
  // Changes the setting. Answers that were given still count, and are still judged.
  void Set(AnswerSpec spec);

  AnswerVerdict Look(const JobView& job, const std::vector<GoalView>& goals,
                     absl::Duration now);
  void Gave(const Answer& answer, absl::Duration now);
  // Notes that the answer could not be carried out. For an hour that worker is not
  // excluded; for the other kinds no answer of that kind is given.
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
  // Returns why the suspect must not be excluded. Empty: it may be.
  std::string WhyNotExclude(const JobView& job, const std::vector<Need>& needs,
                            absl::Duration now) const;
  std::optional<Answer> Exclude(const JobView& job, const std::vector<Need>& needs,
                                absl::Duration now, std::vector<AnswerNews>& news);
  // Returns nullopt if no server can be added; then `state_` says why.
  std::optional<Answer> AddServer(const JobView& job, const std::vector<Need>& needs,
                                  absl::Duration now);
  std::optional<Answer> AddServerOrLoosen(const JobView& job,
                                          const std::vector<Need>& needs,
                                          absl::Duration now);
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
