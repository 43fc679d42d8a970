#include "server/coordinator/losses.h"

#include <cmath>
#include <limits>

namespace syncline {
namespace {

constexpr size_t kMaxPoints = 10000;

// Limit on reports of older steps after the first report of the latest one, beyond those
// of members that are about to report it. More of them mean that the latest step was a
// mistake.
constexpr uint32_t kStray = 16;

bool IsRangeTest(const TrainingSettings& training) {
  return training.schedule.name == "range_test";
}

// Returns the last step of a range test, otherwise the highest number.
uint64_t LastStep(const TrainingSettings& training) {
  const auto updates = training.schedule.values.find("total_steps");
  if (!IsRangeTest(training) || updates == training.schedule.values.end()) {
    return std::numeric_limits<uint64_t>::max();
  }
  return (static_cast<uint64_t>(updates->second) + 1) * training.accumulate_steps;
}

}  // namespace

void Losses::Add(const LossReport& report, const TrainingSettings& training) {
  if (!std::isfinite(report.loss) || report.samples == 0) return;
  if (report.step > LastStep(training)) return;
  const uint64_t latest = means_.empty() ? 0 : means_.rbegin()->first;
  if (report.step > latest) older_ = 0;
  if (!IsRangeTest(training) && report.step < latest) {
    if (++older_ <= 2 * workers_ + kStray) return;
    means_.clear();
    older_ = 0;
  }
  Mean& mean = means_[report.step];
  mean.sum += report.loss * report.samples;
  mean.samples += report.samples;
  const size_t kept = IsRangeTest(training) ? kMaxPoints : 1;
  while (means_.size() > kept) means_.erase(means_.begin());
}

}  // namespace syncline
