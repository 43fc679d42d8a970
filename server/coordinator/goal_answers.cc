#include "server/coordinator/goal_answers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/printable.h"
#include "comm/base/sync_mode.h"

namespace syncline {
namespace {

constexpr absl::Duration kBarredFor = absl::Hours(1);
constexpr uint32_t kMaxPerHour = 20;  // highest setting (comm/job/answers.cc)
// The burn rates of the alert SynclineGoalMissed: at this rate the budget of an hour is
// spent in ten minutes.
constexpr double kShortBurn = 6;
constexpr double kLongBurn = 1;
constexpr uint64_t kBurningWindows = 2;
// A smaller gain may be noise.
constexpr double kHelpsBy = 1.1;
// Share of a step. Members that wait for less would not gain by running ahead.
constexpr double kWaitsEnough = 0.15;
constexpr absl::Duration kSayWithheldEvery = absl::Minutes(10);

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.0f s", absl::ToDoubleSeconds(duration));
}
std::string Ms(double seconds) { return absl::StrFormat("%.3g ms", 1e3 * seconds); }
std::string Written(double value) { return absl::StrFormat("%.6g", value); }

std::string Named(uint32_t rank, const std::string& name) {
  return absl::StrCat("worker ", rank, " (", Printable(name), ")");
}

bool IsOfSpeed(GoalKind kind) {
  return kind == GoalKind::kSamplesPerSecond || kind == GoalKind::kStepP95;
}

// Returns the factor by which `value` is better than `before`.
double Gain(const Goal& goal, double before, double value) {
  const double better = goal.IsAtLeast() ? value : before;
  const double worse = goal.IsAtLeast() ? before : value;
  return worse > 0 ? better / worse : kHelpsBy;
}

// Returns the gain of excluding the slowest member: the others take fewer samples, in
// less time.
double GainOfExclusion(GoalKind kind, const Straggler& straggler, size_t members) {
  const auto n = static_cast<double>(members);
  const double gain = straggler.gain();
  return kind == GoalKind::kSamplesPerSecond ? gain * (n - 1) / n : gain;
}

size_t Inside(const JobView& job) {
  return static_cast<size_t>(std::ranges::count_if(
      job.members, [](const MemberView& member) { return !member.is_outside; }));
}

// Returns a member that may be dead; null: there is none.
const MemberView* FindSilent(const JobView& job) {
  const auto silent = std::ranges::find_if(job.members, [](const MemberView& member) {
    return !member.is_outside && member.is_silent;
  });
  return silent == job.members.end() ? nullptr : &*silent;
}

// Returns 3 for mode "ssp:staleness=3". Empty: another mode.
std::optional<uint64_t> StalenessOf(const JobView& job) {
  const absl::StatusOr<NamedOptions> mode = ParseModeText(job.mode);
  if (!mode.ok()) return std::nullopt;
  const absl::StatusOr<SyncMode> sync = ParseSyncMode(*mode);
  if (!sync.ok() || sync->kind != SyncMode::Kind::kSsp) return std::nullopt;
  return sync->staleness;
}

}  // namespace

void GoalAnswers::Resume(uint32_t exclusions, absl::Duration now) {
  paused_since_ = now;
  if (exclusions == 0) return;
  excluded_at_.assign(std::min(exclusions, kMaxPerHour), now);
  bars_[static_cast<size_t>(AnswerKind::kExcludeStraggler)] = {
      now + kBarredFor,
      "the coordinator was restarted, and does not know whether the last one helped"};
}

void GoalAnswers::Set(AnswerSpec spec) {
  // The watch starts again, as its figures may be old.
  stragglers_ = StragglerWatch(spec.factor);
  spec_ = spec;
}

void GoalAnswers::JudgeLast(const std::vector<GoalView>& goals, absl::Duration now,
                            std::vector<AnswerNews>& news) {
  if (!last_ || last_->is_judged || now - last_->at < spec_.pause) return;
  const Answer& answer = last_->answer;
  const auto goal = std::ranges::find(
      goals, answer.goal.kind, [](const GoalView& view) { return view.goal.kind; });
  const bool is_there = goal != goals.end();
  // A window that began before the answer covers the time before and after it.
  if (is_there && (!goal->now || goal->now_age > now - last_->at)) return;
  last_->is_judged = true;
  if (!is_there) return;
  const double value = *goal->now;
  const bool helped =
      answer.goal.IsMetBy(value) || Gain(answer.goal, answer.value, value) >= kHelpsBy;
  const std::string figures = absl::StrCat(
      std::string(GoalName(answer.goal.kind)), " was ", Written(answer.value),
      ", and was ", Written(value), " ", Seconds(now - last_->at), " later");
  const std::string name(AnswerName(answer.kind));
  if (helped) {
    news.push_back({absl::StrCat(name, " has helped: ", figures)});
    return;
  }
  bars_[static_cast<size_t>(answer.kind)] = {now + kBarredFor,
                                             "the last one did not help"};
  news.push_back({absl::StrCat(name, " has not helped: ", figures,
                               "; it is not tried again within an hour"),
                  true});
}

std::optional<GoalAnswers::Bar> GoalAnswers::BarOf(AnswerKind kind,
                                                   absl::Duration now) const {
  const Bar& bar = bars_[static_cast<size_t>(kind)];
  return bar.until > now ? std::optional(bar) : std::nullopt;
}

std::string GoalAnswers::WhyNotExclude(const JobView& job, const std::vector<Need>& needs,
                                       absl::Duration now) const {
  if (const auto bar = BarOf(AnswerKind::kExcludeStraggler, now)) return bar->why;
  const Straggler& suspect = *stragglers_.suspect();
  const auto refused = not_excluded_.find({suspect.rank, suspect.incarnation});
  if (refused != not_excluded_.end() && refused->second.until > now) {
    return refused->second.why;
  }
  const size_t members = Inside(job);
  const uint32_t least = spec_.LeastWorkers(job.expected_workers);
  if (members <= least) {
    return absl::StrCat("the job has ", members, " workers, and at least ", least,
                        " must stay");
  }
  if (excluded_at_.size() >= spec_.per_hour) {
    return absl::StrCat(excluded_at_.size(),
                        " workers were excluded in the last hour, and no more may be");
  }
  const bool gains = std::ranges::any_of(needs, [&](const Need& need) {
    return GainOfExclusion(need.goal->goal.kind, suspect, members) >= kHelpsBy;
  });
  return gains ? "" : "the goal would hardly be closer without it";
}

std::optional<Answer> GoalAnswers::Exclude(const JobView& job,
                                           const std::vector<Need>& needs,
                                           absl::Duration now,
                                           std::vector<AnswerNews>& news) {
  const Straggler& suspect = *stragglers_.suspect();
  const std::string who = Named(suspect.rank, suspect.name);
  const std::string slow = absl::StrCat(
      "its own part of a step takes ", Ms(suspect.own_seconds), ", ",
      absl::StrFormat("%.1f times as long as that of the next slowest", suspect.ratio()),
      suspect.is_by_link ? ", most of it pushes" : "");
  if (const std::string why = WhyNotExclude(job, needs, now); !why.empty()) {
    state_ = absl::StrCat("does not exclude ", who, ", for which all wait: ", why);
    const bool says = !withheld_said_ || now - *withheld_said_ >= kSayWithheldEvery;
    if (says) news.push_back({state_, true});
    if (says) withheld_said_ = now;
    return std::nullopt;
  }
  const auto need = std::ranges::max_element(needs, {}, [&](const Need& one) {
    return GainOfExclusion(one.goal->goal.kind, suspect, Inside(job));
  });
  return Answer{
      .kind = AnswerKind::kExcludeStraggler,
      .rank = suspect.rank,
      .incarnation = suspect.incarnation,
      .why = absl::StrCat(slow, ", for ", Seconds(suspect.lasted), "; ", need->what),
      .goal = need->goal->goal,
      .value = *need->goal->now};
}

std::optional<Answer> GoalAnswers::Loosen(const JobView& job,
                                          const std::vector<Need>& needs,
                                          absl::Duration now) {
  const std::optional<uint64_t> staleness = StalenessOf(job);
  if (!staleness) {
    state_ = "the job's mode has no staleness";
    return std::nullopt;
  }
  if (const auto bar = BarOf(AnswerKind::kStaleness, now)) {
    state_ = absl::StrCat("staleness stays ", *staleness, ": ", bar->why);
    return std::nullopt;
  }
  if (*staleness >= spec_.staleness) {
    state_ = absl::StrCat("staleness is ", *staleness, ", and may not be raised further");
    return std::nullopt;
  }
  if (stragglers_.waited() < kWaitsEnough) {
    state_ = "workers hardly wait for each other, so a larger staleness would not help";
    return std::nullopt;
  }
  const uint64_t next =
      std::min<uint64_t>(spec_.staleness, std::max<uint64_t>(1, 2 * *staleness));
  return Answer{.kind = AnswerKind::kStaleness,
                .staleness = next,
                .why = absl::StrFormat("workers wait for each other for %.0f %% of a "
                                       "step, and not for a single one; %s",
                                       100 * stragglers_.waited(), needs[0].what),
                .goal = needs[0].goal->goal,
                .value = *needs[0].goal->now};
}

std::optional<Answer> GoalAnswers::AddServer(const JobView& job,
                                             const std::vector<Need>& needs,
                                             absl::Duration now) {
  if (job.standby.empty()) {
    state_ = "no server stands by that could take a share from one that has two";
    return std::nullopt;
  }
  const std::string who = Printable(job.standby);
  if (const auto bar = BarOf(AnswerKind::kAddServer, now)) {
    state_ = absl::StrCat("server ", who, " still stands by: ", bar->why);
    return std::nullopt;
  }
  if (stragglers_.waited() < kWaitsEnough) {
    state_ = "workers hardly wait for servers, so another one would not help";
    return std::nullopt;
  }
  return Answer{.kind = AnswerKind::kAddServer,
                .why = absl::StrCat("server ", who,
                                    ", which stands by, gets a share from a server that "
                                    "has two: no worker is a straggler; ",
                                    needs[0].what),
                .goal = needs[0].goal->goal,
                .value = *needs[0].goal->now};
}

std::optional<Answer> GoalAnswers::AddServerOrLoosen(const JobView& job,
                                                     const std::vector<Need>& needs,
                                                     absl::Duration now) {
  state_ = "no worker is a straggler, so no answer would help";
  if (spec_.adds_server && stragglers_.suspect()) {
    state_ = "all wait for one worker, so another server would not help";
  } else if (spec_.adds_server) {
    std::optional<Answer> added = AddServer(job, needs, now);
    if (added) return added;
  }
  return spec_.staleness > 0 ? Loosen(job, needs, now) : std::nullopt;
}

AnswerVerdict GoalAnswers::Look(const JobView& job, const std::vector<GoalView>& goals,
                                absl::Duration now) {
  AnswerVerdict verdict;
  stragglers_.Look(job, now);
  JudgeLast(goals, now, verdict.news);
  while (!excluded_at_.empty() && now - excluded_at_.front() >= kBarredFor) {
    excluded_at_.pop_front();
  }
  std::vector<Need> needs;
  bool has_goal = false;
  for (const GoalView& goal : goals) {
    if (!IsOfSpeed(goal.goal.kind)) continue;
    has_goal = true;
    const bool burns = goal.burn_rate_5m >= kShortBurn &&
                       goal.burn_rate_1h >= kLongBurn &&
                       goal.missed_windows >= kBurningWindows;
    if (!goal.now || goal.goal.IsMetBy(*goal.now) || !(goal.is_missed || burns)) continue;
    needs.push_back({&goal, absl::StrCat("goal ", goal.goal.Written(),
                                         goal.is_missed ? " is missed: "
                                                        : " burns its error budget: ",
                                         Written(*goal.now))});
  }
  if (!has_goal) {
    state_ = "the job has no goal of samples_per_s or step_p95_ms";
  } else if (job.phase != JobPhase::kRunning) {
    state_ = absl::StrCat("the job is ", std::string(JobPhaseName(job.phase)));
  } else if (needs.empty()) {
    state_ = "its goals are met, or have not been missed for long enough";
  } else if (const MemberView* silent = FindSilent(job)) {
    state_ = absl::StrCat(Named(silent->rank, silent->name), " is silent");
  } else if (last_ && !last_->is_judged && now - last_->at >= spec_.pause) {
    state_ = "waits for a window of its goal that shows whether the last answer helped";
  } else if (paused_since_ && now - *paused_since_ < spec_.pause) {
    state_ = absl::StrCat("waits ", Seconds(spec_.pause - (now - *paused_since_)),
                          " to see whether the last answer helps");
  } else if (const auto& suspect = stragglers_.suspect(); spec_.excludes && suspect) {
    if (suspect->IsOneFor(spec_.after)) {
      verdict.answer = Exclude(job, needs, now, verdict.news);
    } else {
      state_ = absl::StrCat("all have waited for ", Named(suspect->rank, suspect->name),
                            " for ", Seconds(suspect->lasted), " of the ",
                            Seconds(spec_.after), " after which it is excluded");
    }
  } else {
    verdict.answer = AddServerOrLoosen(job, needs, now);
  }
  return verdict;
}

void GoalAnswers::Gave(const Answer& answer, absl::Duration now) {
  last_ = Last{.answer = answer, .at = now};
  paused_since_ = now;
  withheld_said_.reset();
  ++given_[static_cast<size_t>(answer.kind)];
  if (answer.kind == AnswerKind::kExcludeStraggler) excluded_at_.push_back(now);
}

void GoalAnswers::Refused(const Answer& answer, const std::string& why,
                          absl::Duration now) {
  const Bar bar = {now + kBarredFor, why};
  if (answer.kind != AnswerKind::kExcludeStraggler) {
    bars_[static_cast<size_t>(answer.kind)] = bar;
    return;
  }
  std::erase_if(not_excluded_, [&](const auto& one) { return one.second.until <= now; });
  not_excluded_[{answer.rank, answer.incarnation}] = bar;
}

AnswersView GoalAnswers::View(absl::Duration now) const {
  AnswersView view = {.state = state_};
  for (size_t i = 0; i < kAnswerKinds; ++i) {
    view.given[std::string(AnswerName(static_cast<AnswerKind>(i)))] = given_[i];
  }
  if (last_) {
    view.last = last_->answer.why;
    view.last_age = now - last_->at;
  }
  return view;
}

}  // namespace syncline
