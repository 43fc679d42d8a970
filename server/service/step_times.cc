#include "server/service/step_times.h"

namespace syncline {
namespace {

// Number of steps that are measured at the same time.
constexpr size_t kStepsUnderWay = 64;

}  // namespace

void StepTimes::Contributed(uint64_t step, absl::Duration now) {
  const auto [entry, is_first] =
      steps_.try_emplace(step, UnderWay{.began = now, .last_push = now});
  entry->second.last_push = now;
  // From now on a delivered view may be one of this step.
  if (!is_first) return;
  TraceViews(now);
  publishing_since_.reset();
}

void StepTimes::Decided(uint64_t step, absl::Duration now) {
  const auto found = steps_.find(step);
  if (found != steps_.end()) found->second.decided = now;
}

std::optional<absl::Duration> StepTimes::Applied(uint64_t step, absl::Duration now) {
  // A step without contributions begins now.
  const auto entry =
      steps_.try_emplace(step, UnderWay{.began = now, .last_push = now}).first;
  UnderWay& under_way = entry->second;
  if (++under_way.blocks < trained_) {
    // Forgets a step that this engine will never complete.
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
  TraceStep(step, under_way, now);
  const absl::Duration took = now - under_way.began;
  steps_.erase(entry);
  publishing_since_ = publishing_from_ = now;
  published_ = step;
  return took;
}

void StepTimes::Sent(absl::Duration now) {
  if (!publishing_since_) return;
  sums_[ServerPhase::kPublish] += absl::ToDoubleSeconds(now - *publishing_since_);
  publishing_since_ = now;
}

void StepTimes::TraceStep(uint64_t step, const UnderWay& took, absl::Duration now) const {
  if (track_ == nullptr || !track_->IsOpen(job_)) return;
  // The track and `now` use different clocks, which are compared here.
  const int64_t ahead = track_->Now() - absl::ToInt64Nanoseconds(now);
  const auto add = [&](TraceKind kind, absl::Duration begin, absl::Duration end) {
    track_->Add({.begin_ns = absl::ToInt64Nanoseconds(begin) + ahead,
                 .end_ns = absl::ToInt64Nanoseconds(end) + ahead,
                 .step = step,
                 .kind = kind});
  };
  add(TraceKind::kHold, took.began, took.last_push);
  if (took.decided) add(TraceKind::kDecide, took.last_push, *took.decided);
}

void StepTimes::TraceViews(absl::Duration now) const {
  if (!publishing_since_ || track_ == nullptr || !track_->IsOpen(job_)) return;
  const int64_t ahead = track_->Now() - absl::ToInt64Nanoseconds(now);
  track_->Add({.begin_ns = absl::ToInt64Nanoseconds(publishing_from_) + ahead,
               .end_ns = absl::ToInt64Nanoseconds(*publishing_since_) + ahead,
               .step = published_,
               .kind = TraceKind::kSend});
}

}  // namespace syncline
