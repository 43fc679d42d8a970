#include "comm/base/step_durations.h"

#include <algorithm>
#include <bit>

namespace syncline {
namespace {

constexpr uint32_t kPartBits = 5;
static_assert(StepDurations::kParts == 1u << kPartBits);

// Returns the part of a duration. Below 2 * kParts microseconds a part is one
// microsecond.
uint32_t PartOf(absl::Duration duration) {
  constexpr int64_t kLongest = (int64_t{1} << StepDurations::kDoublings) - 1;
  const auto us = static_cast<uint64_t>(
      std::clamp<int64_t>(absl::ToInt64Microseconds(duration), 0, kLongest));
  if (us < 2 * StepDurations::kParts) return static_cast<uint32_t>(us);
  const auto shift = static_cast<uint32_t>(std::bit_width(us)) - 1 - kPartBits;
  return static_cast<uint32_t>(us >> shift) + (shift << kPartBits);
}

// Limits a sum that a member reports: it need not be a sensible duration.
absl::Duration Bounded(absl::Duration sum) {
  constexpr absl::Duration kMost = absl::Hours(24 * 36'500);
  return std::clamp(sum, absl::ZeroDuration(), kMost);
}

double FirstMicrosecondOf(uint32_t part) {
  if (part < 2 * StepDurations::kParts) return part;
  const uint32_t shift = (part >> kPartBits) - 1;
  const uint64_t first = part - (shift << kPartBits);
  return static_cast<double>(first << shift);
}

}  // namespace

StepDurations::StepDurations(const Counts& counts, absl::Duration sum)
    : sum_(Bounded(sum)) {
  for (const auto& [part, count] : counts) {
    if (part < kAllParts && count > 0) counts_[part] = count;
  }
}

void StepDurations::Add(absl::Duration duration) {
  ++counts_[PartOf(duration)];
  sum_ = Bounded(sum_ + Bounded(duration));
}

void StepDurations::Add(const StepDurations& others) {
  for (const auto& [part, count] : others.counts_) counts_[part] += count;
  sum_ = Bounded(sum_ + others.sum_);
}

StepDurations StepDurations::Since(const StepDurations& earlier) const {
  StepDurations later;
  for (const auto& [part, count] : counts_) {
    const auto before = earlier.counts_.find(part);
    const uint64_t known = before == earlier.counts_.end() ? 0 : before->second;
    if (count > known) later.counts_[part] = count - known;
  }
  later.sum_ = Bounded(sum_ - earlier.sum_);
  return later;
}

uint64_t StepDurations::total() const {
  uint64_t total = 0;
  for (const auto& [part, count] : counts_) total += count;
  return total;
}

// Assumes that the steps of a part are spread evenly over it.
std::optional<absl::Duration> StepDurations::Quantile(double share) const {
  if (counts_.empty()) return std::nullopt;
  const double wanted = share * static_cast<double>(total());
  double seen = 0;
  for (const auto& [part, count] : counts_) {
    const auto here = static_cast<double>(count);
    if (seen + here >= wanted) {
      const double first = FirstMicrosecondOf(part);
      const double width = FirstMicrosecondOf(part + 1) - first;
      return absl::Microseconds(first + width * (wanted - seen) / here);
    }
    seen += here;
  }
  return absl::Microseconds(FirstMicrosecondOf(counts_.rbegin()->first + 1));
}

}  // namespace syncline
