#include "server/admin/shard_series.h"

#include "absl/strings/str_cat.h"

namespace syncline {

ShardFamilies::ShardFamilies(prometheus::Registry& registry)
    : step_seconds(prometheus::BuildCounter()
                       .Name("syncline_shard_step_seconds_total")
                       .Help("Time in which an engine thread worked on steps of a job.")
                       .Register(registry)),
      window_fill(prometheus::BuildGauge()
                      .Name("syncline_shard_window_fill_ratio")
                      .Help("Bytes on their way from a shard to the worker that has most "
                            "of its window, over the window.")
                      .Register(registry)) {}

ShardSeries::ShardSeries(const ShardFamilies& families, const std::string& job_name,
                         uint32_t shard) {
  const prometheus::Labels labels = {{"job_name", job_name},
                                     {"shard", absl::StrCat(shard)}};
  step_seconds_ = &families.step_seconds.Add(labels);
  window_fill_ = &families.window_fill.Add(labels);
}

void ShardSeries::Set(double step_seconds, double window_fill) {
  if (step_seconds < last_) last_ = 0;
  step_seconds_->Increment(step_seconds - last_);
  last_ = step_seconds;
  window_fill_->Set(window_fill);
}

void ShardSeries::Remove(const ShardFamilies& families) const {
  families.step_seconds.Remove(step_seconds_);
  families.window_fill.Remove(window_fill_);
}

}  // namespace syncline
