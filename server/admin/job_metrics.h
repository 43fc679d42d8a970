// Metrics that only the coordinator knows, for Prometheus: loss and rates of jobs,
// expected and present members, contributors, causes of epochs, checkpoints, skipped
// steps. README.md of this folder has the names and labels.
//
//   JobMetrics metrics(registry);
//   metrics.Show(coordinator.View(now));   // once a second
//
// The series of a job end with it. A later job of the same name has new series.
//
// Thread safety: none. Any thread may scrape.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "server/coordinator/views.h"

namespace prometheus {
class Registry;
}

namespace syncline {

class JobMetrics {
 public:
  explicit JobMetrics(prometheus::Registry& registry);
  ~JobMetrics();

  // Updates the series of all jobs in the view, and ends those of other jobs.
  void Show(const CoordinatorView& view);

 private:
  struct Families;
  struct Series;

  const std::unique_ptr<Families> families_;
  std::map<uint32_t, std::unique_ptr<Series>> jobs_;
};

}  // namespace syncline
