// The series of a job's goals (docs/goals.md), and the families that they are in: nine for
// each goal, of which there are four at most, and one for each kind of answer. For
// job_metrics.cc alone.
//
// Thread safety: none but that of prometheus-cpp.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "server/coordinator/views.h"

namespace syncline {

struct GoalFamilies {
  explicit GoalFamilies(prometheus::Registry& registry);

  prometheus::Family<prometheus::Gauge>& limit;
  prometheus::Family<prometheus::Gauge>& value;
  prometheus::Family<prometheus::Gauge>& budget_left;
  prometheus::Family<prometheus::Gauge>& burn_rate;
  prometheus::Family<prometheus::Gauge>& missed_windows;
  prometheus::Family<prometheus::Gauge>& will_be_missed;
  prometheus::Family<prometheus::Counter>& seconds;
  prometheus::Family<prometheus::Counter>& answers;
};

// Of one job; they end with this, and with the goal.
class GoalSeries {
 public:
  GoalSeries(const GoalFamilies& families, std::string job_name);
  ~GoalSeries();
  GoalSeries(const GoalSeries&) = delete;
  GoalSeries& operator=(const GoalSeries&) = delete;

  void Show(const JobView& job);

 private:
  struct OfGoal;

  const GoalFamilies& families_;
  const std::string job_name_;
  std::map<std::string, std::unique_ptr<OfGoal>> goals_;  // by name
  std::map<std::string, prometheus::Counter*> answers_;   // by kind
};

}  // namespace syncline
