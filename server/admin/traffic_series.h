// The Prometheus series of one job's traffic on a server (job_traffic.h), and the
// families that contain them. Used by metrics.cc only.
//
// Thread safety: only that of prometheus-cpp.
#pragma once

#include <array>
#include <string>

#include "absl/time/time.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "server/admin/job_traffic.h"

namespace syncline {

struct TrafficFamilies {
  explicit TrafficFamilies(prometheus::Registry& registry);

  prometheus::Family<prometheus::Counter>& pushes;
  prometheus::Family<prometheus::Counter>& pushed_bytes;
  prometheus::Family<prometheus::Counter>& published;
  prometheus::Family<prometheus::Counter>& published_bytes;
  prometheus::Family<prometheus::Counter>& refused;
  prometheus::Family<prometheus::Histogram>& step_seconds;
};

class TrafficSeries {
 public:
  // Creates all series at once, at zero. If a series appeared only with its first
  // increment, a rate would miss that increment.
  TrafficSeries(const TrafficFamilies& families, const std::string& job_name);

  void GrowTo(const JobTraffic::Sums& sums);
  void ObserveStep(absl::Duration duration);
  // Removes the series. The object must not be used after that.
  void Remove(const TrafficFamilies& families) const;

 private:
  std::array<prometheus::Counter*, 3> pushes_ = {};  // by PushResult
  prometheus::Counter* pushed_bytes_;
  prometheus::Counter* published_;
  prometheus::Counter* published_bytes_;
  std::array<prometheus::Counter*, JobTraffic::kReasons> refused_ = {};
  prometheus::Histogram* step_seconds_;
};

// Increases a counter to a value that was counted elsewhere.
void GrowTo(prometheus::Counter& counter, double value);

}  // namespace syncline
