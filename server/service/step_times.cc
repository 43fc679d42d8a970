#include "server/service/step_times.h"

namespace syncline {
namespace {

// Steps whose time is measured at once.
constexpr size_t kStepsUnderWay = 64;

}  // namespace

void StepTimes::Contributed(uint64_t step, absl::Duration now) {
  const auto [entry, is_first] =
      steps_.try_emplace(step, UnderWay{.began = now, .last_push = now});
  entry->second.last_push = now;
  // What is delivered from here on may be a view of this step.
  if (is_first) publishing_since_.reset();
}

void StepTimes::Decided(uint64_t step, absl::Duration now) {
  const auto found = steps_.find(step);
  if (found != steps_.end()) found->second.decided = now;
}

std::optional<absl::Duration> StepTimes::Applied(uint64_t step, absl::Duration now) {
  // A step nobody contributed to has no beginning.
  const auto entry =
      steps_.try_emplace(step, UnderWay{.began = now, .last_push = now}).first;
  UnderWay& under_way = entry->second;
  if (++under_way.blocks < trained_) {
    // A step that nobody here completes must not stay forever.
    if (steps_.size() > kStepsUnderWay) steps_.erase(steps_.begin());
    return std::nullopt;
  }
  ++sums_.steps;
  sums_[ServerPhase::kHold] +=
      absl::ToDoubleSeconds(under_way.last_push - under_way.began);
  if (under_way.decided) {
    sums_[ServerPhase::kDecide] +=
        absl::ToDoubleSeconds(*under_way.decided - under_way.last_push);
  }
  const absl::Duration took = now - under_way.began;
  steps_.erase(entry);
  publishing_since_ = now;
  return took;
}

void StepTimes::Sent(absl::Duration now) {
  if (!publishing_since_) return;
  sums_[ServerPhase::kPublish] += absl::ToDoubleSeconds(now - *publishing_since_);
  publishing_since_ = now;
}

}  // namespace syncline
