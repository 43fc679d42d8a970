#include "server/admin/goal_metrics.h"

#include <algorithm>
#include <utility>

#include "server/admin/traffic_series.h"

namespace syncline {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;

Family<Gauge>& Gauges(prometheus::Registry& registry, const char* name,
                      const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

}  // namespace

GoalFamilies::GoalFamilies(prometheus::Registry& registry)
    : limit(Gauges(registry, "syncline_goal_limit",
                   "Limit of a job's goal: at least, or at most.")),
      value(Gauges(registry, "syncline_goal_value",
                   "Value of a goal in the last window of time.")),
      budget_left(
          Gauges(registry, "syncline_goal_budget_left_ratio",
                 "Share of a goal's error budget of the last hour that is left.")),
      burn_rate(Gauges(registry, "syncline_goal_burn_rate",
                       "Time in which a goal was missed over what its budget allows.")),
      missed_windows(Gauges(registry, "syncline_goal_missed_windows",
                            "Windows of time of the last hour that missed a goal.")),
      will_be_missed(Gauges(registry, "syncline_goal_will_be_missed",
                            "1 while a goal's trend leads to its limit within 15 min.")),
      seconds(prometheus::BuildCounter()
                  .Name("syncline_goal_seconds_total")
                  .Help("Time in which a goal was met, and missed.")
                  .Register(registry)),
      answers(prometheus::BuildCounter()
                  .Name("syncline_goal_answers_total")
                  .Help("What the coordinator did by itself because goals were missed.")
                  .Register(registry)) {}

struct GoalSeries::OfGoal {
  OfGoal(const GoalFamilies& of, const prometheus::Labels& labels) : families(of) {
    limit = &families.limit.Add(labels);
    budget_left = &families.budget_left.Add(labels);
    missed_windows = &families.missed_windows.Add(labels);
    will_be_missed = &families.will_be_missed.Add(labels);
    own = labels;
    const auto with = [&](const char* label, const char* word) {
      prometheus::Labels more = labels;
      more[label] = word;
      return more;
    };
    burn_5m = &families.burn_rate.Add(with("window", "5m"));
    burn_1h = &families.burn_rate.Add(with("window", "1h"));
    met = &families.seconds.Add(with("result", "met"));
    missed = &families.seconds.Add(with("result", "missed"));
  }
  ~OfGoal() {
    families.limit.Remove(limit);
    if (value != nullptr) families.value.Remove(value);
    families.budget_left.Remove(budget_left);
    families.missed_windows.Remove(missed_windows);
    families.will_be_missed.Remove(will_be_missed);
    for (Gauge* one : {burn_5m, burn_1h}) families.burn_rate.Remove(one);
    for (Counter* one : {met, missed}) families.seconds.Remove(one);
  }
  OfGoal(const OfGoal&) = delete;
  OfGoal& operator=(const OfGoal&) = delete;

  // Returns whether the counts have started again, because the goals are other ones.
  bool HasRestarted(const GoalView& goal) const {
    return goal.met_seconds < met->Value() || goal.missed_seconds < missed->Value();
  }

  void Show(const GoalView& goal) {
    limit->Set(goal.goal.limit);
    if (goal.now && value == nullptr) value = &families.value.Add(own);
    if (goal.now) value->Set(*goal.now);
    budget_left->Set(goal.budget_left);
    burn_5m->Set(goal.burn_rate_5m);
    burn_1h->Set(goal.burn_rate_1h);
    missed_windows->Set(static_cast<double>(goal.missed_windows));
    will_be_missed->Set(goal.missed_in ? 1 : 0);
    GrowTo(*met, goal.met_seconds);
    GrowTo(*missed, goal.missed_seconds);
  }

  const GoalFamilies& families;
  prometheus::Labels own;
  Gauge* limit = nullptr;
  Gauge* value = nullptr;  // null: no value yet
  Gauge* budget_left = nullptr;
  Gauge* missed_windows = nullptr;
  Gauge* will_be_missed = nullptr;
  Gauge* burn_5m = nullptr;
  Gauge* burn_1h = nullptr;
  Counter* met = nullptr;
  Counter* missed = nullptr;
};

GoalSeries::GoalSeries(const GoalFamilies& families, std::string job_name)
    : families_(families), job_name_(std::move(job_name)) {}

GoalSeries::~GoalSeries() {
  for (const auto& [kind, given] : answers_) families_.answers.Remove(given);
}

void GoalSeries::Show(const JobView& job) {
  const std::vector<GoalView>& goals = job.goals;
  for (const auto& [kind, count] :
       job.answers ? job.answers->given : std::map<std::string, uint64_t>()) {
    Counter*& given = answers_[kind];
    if (given == nullptr) {
      given = &families_.answers.Add({{"job_name", job_name_}, {"answer", kind}});
    }
    GrowTo(*given, static_cast<double>(count));
  }
  std::erase_if(goals_, [&](const auto& known) {
    return std::ranges::none_of(goals, [&](const GoalView& goal) {
      return GoalName(goal.goal.kind) == known.first;
    });
  });
  for (const GoalView& goal : goals) {
    const std::string name(GoalName(goal.goal.kind));
    std::unique_ptr<OfGoal>& series = goals_[name];
    if (series != nullptr && series->HasRestarted(goal)) series.reset();
    if (series == nullptr) {
      series = std::make_unique<OfGoal>(
          families_, prometheus::Labels{{"job_name", job_name_}, {"goal", name}});
    }
    series->Show(goal);
  }
}

}  // namespace syncline
