// Measures the phases of a worker's steps (comm/base/step_phases.h). While a thread of
// the program waits, the phase is the exchange's; otherwise it is the program's.
//
//   PhaseMeter meter(clock);
//   meter.Begin();
//   meter.Exchange(WorkerPhase::kPush);    // on the loop thread
//   { PhaseMeter::Wait wait(meter); ... }  // while a thread of the program sleeps
//   meter.Step();
//
// A change of phase reads the clock and takes a short lock. Exchange with an unchanged
// phase does neither.
//
// Thread safety: thread-safe, except that only one thread may call Exchange.
#pragma once

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/step_durations.h"
#include "comm/base/step_phases.h"
#include "comm/base/trace_recorder.h"

namespace syncline {

class PhaseMeter {
 public:
  // `clock` must outlive it.
  explicit PhaseMeter(const Clock& clock) : clock_(clock) {}

  // Records the phases as spans on this track, too, while a trace of the job is open.
  // `step` is the first step. Call it before Begin. The track must use the same clock,
  // and outlive the meter.
  void TraceTo(TraceTrack* track, uint32_t job, uint64_t step)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the measurement. The time before does not count.
  void Begin() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the phase of the exchange.
  void Exchange(WorkerPhase phase) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reports that all gradients of a step were pushed. Step `next` begins when the last
  // weights of this step have arrived (Landed), or at the next call of Step.
  void Step(uint64_t next = 0) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reports that the weights of all pushed gradients have arrived.
  void Landed() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the phases until now, including the present step.
  WorkerPhases sums() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the phases until the last Step. Differences of two results always cover whole
  // steps.
  WorkerPhases whole_steps() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the durations from each Step to the next.
  StepDurations durations() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Exists while a thread of the program waits.
  class Wait {
   public:
    explicit Wait(PhaseMeter& meter) : meter_(meter) { meter_.Waits(1); }
    ~Wait() { meter_.Waits(-1); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    PhaseMeter& meter_;
  };

  // Exists while the program's thread does this work for the session.
  class Work {
   public:
    Work(PhaseMeter& meter, WorkerPhase phase) : meter_(meter) { meter_.Program(phase); }
    ~Work() { meter_.Program(WorkerPhase::kCompute); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    PhaseMeter& meter_;
  };

 private:
  void Waits(int change) ABSL_LOCKS_EXCLUDED(mutex_);
  void Program(WorkerPhase phase) ABSL_LOCKS_EXCLUDED(mutex_);
  WorkerPhase phase() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return waits_ > 0 ? exchange_ : program_;
  }
  void Close() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  // The phase of the last call of Exchange. Used by the calling thread only.
  WorkerPhase last_exchange_ = WorkerPhase::kOthers;

  mutable absl::Mutex mutex_;
  bool has_begun_ ABSL_GUARDED_BY(mutex_) = false;
  int waits_ ABSL_GUARDED_BY(mutex_) = 0;
  WorkerPhase exchange_ ABSL_GUARDED_BY(mutex_) = WorkerPhase::kOthers;
  WorkerPhase program_ ABSL_GUARDED_BY(mutex_) = WorkerPhase::kCompute;
  absl::Duration since_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  WorkerPhases sums_ ABSL_GUARDED_BY(mutex_);
  WorkerPhases whole_steps_ ABSL_GUARDED_BY(mutex_);
  StepDurations durations_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Duration> stepped_at_ ABSL_GUARDED_BY(mutex_);
  TraceTrack* track_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint32_t job_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t step_ ABSL_GUARDED_BY(mutex_) = 0;  // the present step
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // the step after it
  // Landed was called while the program waited; next_ begins when it wakes up.
  bool has_landed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncline
