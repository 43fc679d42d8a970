// Measures the phases of the steps of one job on one engine (comm/base/step_phases.h),
// from what happens to the job's shard.
//
//   times.Contributed(step, now);            // a push was counted
//   times.Decided(step, now);                // for steps that need a decision
//   times.Worked(duration);                  // the engine worked on the step
//   if (auto took = times.Applied(step, now)) ...   // once for each block of the step
//   times.Sent(now);                         // a view was delivered
//
// Thread safety: none; the engine's thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "comm/base/step_phases.h"
#include "comm/base/trace_recorder.h"

namespace syncline {

class StepTimes {
 public:
  // `trained`: number of blocks that make each step.
  explicit StepTimes(size_t trained = 0) : trained_(trained) {}

  // Also records the steps in `track` while a trace of the job is open. The track must
  // belong to the engine's thread and outlive this object.
  void TraceTo(TraceTrack* track, uint32_t job) {
    track_ = track;
    job_ = job;
  }

  // Notes a counted push to the step.
  void Contributed(uint64_t step, absl::Duration now);
  // Notes the coordinator's decision about the step.
  void Decided(uint64_t step, absl::Duration now);
  // Adds time in which the engine worked on steps.
  void Worked(absl::Duration took) {
    sums_[ServerPhase::kStep] += absl::ToDoubleSeconds(took);
  }
  // Notes that a block has made the step. At the last block it returns the time since the
  // first contribution.
  std::optional<absl::Duration> Applied(uint64_t step, absl::Duration now);
  // Notes that a view was delivered.
  void Sent(absl::Duration now);

  const ServerPhases& sums() const { return sums_; }

 private:
  struct UnderWay {
    absl::Duration began;
    absl::Duration last_push;
    size_t blocks = 0;  // that have made the step
    std::optional<absl::Duration> decided = std::nullopt;
  };

  void TraceStep(uint64_t step, const UnderWay& took, absl::Duration now) const;
  void TraceViews(absl::Duration now) const;

  size_t trained_;
  std::map<uint64_t, UnderWay> steps_;
  // Time up to which publishing of the last complete step has been counted. Empty: no
  // step is being published.
  std::optional<absl::Duration> publishing_since_;
  uint64_t published_ = 0;  // number of that step
  absl::Duration publishing_from_;
  TraceTrack* track_ = nullptr;
  uint32_t job_ = 0;
  ServerPhases sums_;
};

}  // namespace syncline
