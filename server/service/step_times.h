// What the steps of one job cost on one engine (comm/base/step_phases.h), from what happens
// to its shard.
//
//   times.Contributed(step, now);            // a push that counts
//   times.Decided(step, now);                // where the step needs a decision
//   times.Worked(duration);                  // the engine was busy with it
//   if (auto took = times.Applied(step, now)) ...   // by the last of the step's blocks
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
  // `trained` blocks make each step.
  explicit StepTimes(size_t trained = 0) : trained_(trained) {}

  // While a trace of the job is open its steps go there too. The track, of the engine's
  // thread, outlives it.
  void TraceTo(TraceTrack* track, uint32_t job) {
    track_ = track;
    job_ = job;
  }

  void Contributed(uint64_t step, absl::Duration now);
  void Decided(uint64_t step, absl::Duration now);
  void Worked(absl::Duration took) {
    sums_[ServerPhase::kStep] += absl::ToDoubleSeconds(took);
  }
  // A block made the step. Once all have: since the first contribution.
  std::optional<absl::Duration> Applied(uint64_t step, absl::Duration now);
  void Sent(absl::Duration now);

  const ServerPhases& sums() const { return sums_; }

 private:
  struct UnderWay {
    absl::Duration began;
    absl::Duration last_push;
    size_t blocks = 0;  // that have completed it
    std::optional<absl::Duration> decided = std::nullopt;
  };

  void TraceStep(uint64_t step, const UnderWay& took, absl::Duration now) const;
  void TraceViews(absl::Duration now) const;

  size_t trained_;
  std::map<uint64_t, UnderWay> steps_;
  // Of the last step that was complete: until now its views were on their way.
  std::optional<absl::Duration> publishing_since_;
  uint64_t published_ = 0;  // that step
  absl::Duration publishing_from_;
  TraceTrack* track_ = nullptr;
  uint32_t job_ = 0;
  ServerPhases sums_;
};

}  // namespace syncline
