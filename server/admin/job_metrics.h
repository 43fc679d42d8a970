// What the coordinator knows of its jobs, for Prometheus: loss and rates, who is expected
// and who is there, who contributes, what epochs changed for, what was saved and skipped.
// Names and labels: README.md of this folder.
//
//   JobMetrics metrics(registry);
//   metrics.Show(coordinator.View(now));   // once a second
//
// The series of a job end with it, and those of another job of its name begin anew.
//
// Thread safety: none; scrapes may come from any thread.
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

  void Show(const CoordinatorView& view);

 private:
  struct Families;
  struct Series;

  const std::unique_ptr<Families> families_;
  std::map<uint32_t, std::unique_ptr<Series>> jobs_;
};

}  // namespace syncline
