// Measures the phases of a worker's steps (comm/base/step_phases.h): which of them it is in
// follows from whether the program waits, and from what the exchange is at meanwhile.
//
//   PhaseMeter meter(clock);
//   meter.Begin();
//   meter.Exchange(WorkerPhase::kPush);    // the loop's thread, when it changes
//   { PhaseMeter::Wait wait(meter); ... }  // a program's thread sleeps
//   meter.Step();
//
// A change costs a reading of the clock and a short lock; what stays as it was, neither.
//
// Thread-safe, but for Exchange, which one thread calls.
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
  // The clock outlives it.
  explicit PhaseMeter(const Clock& clock) : clock_(clock) {}

  // While a trace of the job is open its spans go there too, by the same clock as the
  // meter's. Before Begin; the track outlives the meter. `step` is the first.
  void TraceTo(TraceTrack* track, uint32_t job, uint64_t step)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing before counts.
  void Begin() ABSL_LOCKS_EXCLUDED(mutex_);
  void Exchange(WorkerPhase phase) ABSL_LOCKS_EXCLUDED(mutex_);
  // Another step was pushed whole, and that of number `next` begins once this one's last
  // weights are here, or are pushed themselves.
  void Step(uint64_t next = 0) ABSL_LOCKS_EXCLUDED(mutex_);
  // All that was pushed is answered with weights.
  void Landed() ABSL_LOCKS_EXCLUDED(mutex_);
  // Until now, also of a step that is not over.
  WorkerPhases sums() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Until the last Step, so that differences are of whole steps, however long one takes.
  WorkerPhases whole_steps() const ABSL_LOCKS_EXCLUDED(mutex_);
  // From one Step to the next.
  StepDurations durations() const ABSL_LOCKS_EXCLUDED(mutex_);

  // While it lives a thread of the program waits.
  class Wait {
   public:
    explicit Wait(PhaseMeter& meter) : meter_(meter) { meter_.Waits(1); }
    ~Wait() { meter_.Waits(-1); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    PhaseMeter& meter_;
  };

  // While it lives the program's thread does this for the session.
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
  WorkerPhase last_exchange_ = WorkerPhase::kOthers;  // of the thread that calls Exchange

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
  uint64_t step_ ABSL_GUARDED_BY(mutex_) = 0;  // the present one
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // once that is over
  bool has_landed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncline
