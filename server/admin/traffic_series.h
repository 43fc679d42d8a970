// The series of one job's traffic on a server (job_traffic.h), and the families that they
// are in. For metrics.cc alone.
//
// Thread safety: none but that of prometheus-cpp.
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
  // All from the start, at zero: a rate over a series that only appears with its first
  // increment misses that increment.
  TrafficSeries(const TrafficFamilies& families, const std::string& job_name);

  void GrowTo(const JobTraffic::Sums& sums);
  void ObserveStep(absl::Duration duration);
  // The last thing that is done with it.
  void Remove(const TrafficFamilies& families) const;

 private:
  std::array<prometheus::Counter*, 3> pushes_ = {};  // by PushResult
  prometheus::Counter* pushed_bytes_;
  prometheus::Counter* published_;
  prometheus::Counter* published_bytes_;
  std::array<prometheus::Counter*, JobTraffic::kReasons> refused_ = {};
  prometheus::Histogram* step_seconds_;
};

// A counter that is set to what somebody else has counted.
void GrowTo(prometheus::Counter& counter, double value);

}  // namespace syncline
