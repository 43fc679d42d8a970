// How long steps took: counts by length, so that those of many workers add up and a
// quantile of all of them is known to 3 %.
//
//   StepDurations durations;
//   durations.Add(absl::Milliseconds(80));
//   durations.Since(earlier).Quantile(0.95);
//
// Lengths go up to days; each doubling is cut into 32 equal parts, so that what a worker
// says of its steps, which are much alike, is a few numbers.
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
  // By part. One is kept of each member of a job, and copied: a node for each part would be much.
  using Counts = absl::btree_map<uint32_t, uint64_t>;
  static constexpr uint32_t kParts = 32;      // of a doubling
  static constexpr uint32_t kDoublings = 36;  // of one microsecond, to 19 hours
  static constexpr uint32_t kAllParts = kParts * kDoublings;

  StepDurations() = default;
  // Parts that do not exist are left out, and so is a sum that no steps can have.
  StepDurations(const Counts& counts, absl::Duration sum);

  void Add(absl::Duration duration);
  void Add(const StepDurations& others);
  // Those that came after `earlier`, which has counted the same steps.
  StepDurations Since(const StepDurations& earlier) const;

  uint64_t total() const;
  absl::Duration sum() const { return sum_; }  // exact
  // None of no steps. `share` is from 0 to 1.
  std::optional<absl::Duration> Quantile(double share) const;
  const Counts& counts() const { return counts_; }

 private:
  Counts counts_;
  absl::Duration sum_ = {};
};

}  // namespace syncline
