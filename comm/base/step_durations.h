// A histogram of step durations. Histograms of many workers can be added, and quantiles
// are exact to 3 %.
//
//   StepDurations durations;
//   durations.Add(absl::Milliseconds(80));
//   durations.Since(earlier).Quantile(0.95);
//
// Durations range up to 19 hours. Each doubling is divided into 32 equal parts. A
// worker's steps are similar to each other, so its histogram is a few numbers.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"

namespace syncline {

class StepDurations {
 public:
  // Counts by part. Every member of a job has one, and it is copied, so a node per part
  // would be too expensive.
  using Counts = absl::btree_map<uint32_t, uint64_t>;
  static constexpr uint32_t kParts = 32;  // parts of each doubling
  // Doublings of one microsecond, up to 19 hours.
  static constexpr uint32_t kDoublings = 36;
  static constexpr uint32_t kAllParts = kParts * kDoublings;

  StepDurations() = default;
  // Ignores parts that do not exist, and an impossible sum.
  StepDurations(const Counts& counts, absl::Duration sum);

  void Add(absl::Duration duration);
  void Add(const StepDurations& others);
  // Returns the durations added after `earlier`, a previous state of this histogram.
  StepDurations Since(const StepDurations& earlier) const;

  uint64_t total() const;
  absl::Duration sum() const { return sum_; }  // exact
  // Returns nullopt without steps. `share` is from 0 to 1.
  std::optional<absl::Duration> Quantile(double share) const;
  const Counts& counts() const { return counts_; }

 private:
  Counts counts_;
  absl::Duration sum_ = {};
};

}  // namespace syncline
