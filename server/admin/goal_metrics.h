// The Prometheus series of a job's goals (docs/goals.md), and the families that contain
// them. There are nine series for each of up to four goals, and one for each kind of
// answer. Used by job_metrics.cc only.
//
// Thread safety: only that of prometheus-cpp.
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

// The series of one job. They end with this object; those of one goal end with the goal.
class GoalSeries {
 public:
  GoalSeries(const GoalFamilies& families, std::string job_name);
  ~GoalSeries();
  GoalSeries(const GoalSeries&) = delete;
  GoalSeries& operator=(const GoalSeries&) = delete;

  // Updates the series. A goal gets its series when it is first seen.
  void Show(const JobView& job);

 private:
  struct OfGoal;

  const GoalFamilies& families_;
  const std::string job_name_;
  std::map<std::string, std::unique_ptr<OfGoal>> goals_;  // by name
  std::map<std::string, prometheus::Counter*> answers_;   // by kind
};

}  // namespace syncline
