// The Prometheus series of one shard of a job: of one engine thread of a server. Used by
// metrics.cc only.
//
// Thread safety: only that of prometheus-cpp.
#pragma once

#include <cstdint>
#include <string>

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

namespace syncline {

struct ShardFamilies {
  explicit ShardFamilies(prometheus::Registry& registry);

  prometheus::Family<prometheus::Counter>& step_seconds;
  prometheus::Family<prometheus::Gauge>& window_fill;
};

class ShardSeries {
 public:
  // `shard`: number of the engine thread on its server, from 0.
  ShardSeries(const ShardFamilies& families, const std::string& job_name, uint32_t shard);

  // `step_seconds`: sum so far. If it decreased, the server has a new shard, whose sum
  // began at 0.
  void Set(double step_seconds, double window_fill);
  // Removes the series. The object must not be used after that.
  void Remove(const ShardFamilies& families) const;

 private:
  prometheus::Counter* step_seconds_;
  prometheus::Gauge* window_fill_;
  double last_ = 0;
};

}  // namespace syncline
