#include "server/admin/traffic_series.h"

#include <algorithm>

#include "absl/strings/str_replace.h"

namespace syncline {
namespace {

using prometheus::Histogram;

constexpr std::array<const char*, 3> kPushResults = {"counted", "repeated", "refused"};

// From a small model in shared memory to a large one over a slow network, with three
// buckets a decade.
Histogram::BucketBoundaries StepBuckets() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50};
}

prometheus::Family<prometheus::Counter>& Counters(prometheus::Registry& registry,
                                                  const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

// Turns "stale epoch" into "stale_epoch", as label values are written.
std::string ReasonLabel(RefuseCode code) {
  return absl::StrReplaceAll(RefuseCodeName(code), {{" ", "_"}});
}

}  // namespace

void GrowTo(prometheus::Counter& counter, double value) {
  counter.Increment(std::max(0.0, value - counter.Value()));
}

TrafficFamilies::TrafficFamilies(prometheus::Registry& registry)
    : pushes(Counters(registry, "syncline_pushes_total",
                      "Received contributions, by result.")),
      pushed_bytes(Counters(registry, "syncline_pushed_bytes_total",
                            "Payload bytes of received contributions.")),
      published(Counters(registry, "syncline_published_total",
                         "Blocks sent to workers after a step or on a pull.")),
      published_bytes(Counters(registry, "syncline_published_bytes_total",
                               "Payload bytes of published blocks.")),
      refused(
          Counters(registry, "syncline_refused_total", "Refused messages, by reason.")),
      step_seconds(
          prometheus::BuildHistogram()
              .Name("syncline_step_seconds")
              .Help("From a step's first contribution to its last published block.")
              .Register(registry)) {}

TrafficSeries::TrafficSeries(const TrafficFamilies& families,
                             const std::string& job_name) {
  const prometheus::Labels job = {{"job_name", job_name}};
  const auto with = [&job](const char* label, const std::string& value) {
    prometheus::Labels labels = job;
    labels[label] = value;
    return labels;
  };
  for (size_t i = 0; i < pushes_.size(); ++i) {
    pushes_[i] = &families.pushes.Add(with("result", kPushResults[i]));
  }
  pushed_bytes_ = &families.pushed_bytes.Add(job);
  published_ = &families.published.Add(job);
  published_bytes_ = &families.published_bytes.Add(job);
  for (size_t i = 0; i < refused_.size(); ++i) {
    const std::string reason = ReasonLabel(static_cast<RefuseCode>(i + 1));
    refused_[i] = &families.refused.Add(with("reason", reason));
  }
  step_seconds_ = &families.step_seconds.Add(job, StepBuckets());
}

void TrafficSeries::GrowTo(const JobTraffic::Sums& sums) {
  const auto grow = [](prometheus::Counter* counter, uint64_t value) {
    syncline::GrowTo(*counter, static_cast<double>(value));
  };
  for (size_t i = 0; i < pushes_.size(); ++i) grow(pushes_[i], sums.pushes[i]);
  grow(pushed_bytes_, sums.pushed_bytes);
  grow(published_, sums.published);
  grow(published_bytes_, sums.published_bytes);
  for (size_t i = 0; i < refused_.size(); ++i) grow(refused_[i], sums.refused[i]);
}

void TrafficSeries::ObserveStep(absl::Duration duration) {
  step_seconds_->Observe(absl::ToDoubleSeconds(duration));
}

void TrafficSeries::Remove(const TrafficFamilies& families) const {
  for (prometheus::Counter* counter : pushes_) families.pushes.Remove(counter);
  families.pushed_bytes.Remove(pushed_bytes_);
  families.published.Remove(published_);
  families.published_bytes.Remove(published_bytes_);
  for (prometheus::Counter* counter : refused_) families.refused.Remove(counter);
  families.step_seconds.Remove(step_seconds_);
}

}  // namespace syncline
