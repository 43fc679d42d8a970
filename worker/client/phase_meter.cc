#include "worker/client/phase_meter.h"

#include <utility>

namespace syncline {

void PhaseMeter::TraceTo(TraceTrack* track, uint32_t job, uint64_t step) {
  absl::MutexLock lock(&mutex_);
  track_ = track;
  job_ = job;
  step_ = next_ = step;
}

void PhaseMeter::Begin() {
  absl::MutexLock lock(&mutex_);
  has_begun_ = true;
  since_ = clock_.Now();
  sums_ = whole_steps_ = {};
  durations_ = {};
  stepped_at_.reset();
}

// Adds the time since the last change to the present phase.
void PhaseMeter::Close() {
  if (!has_begun_) return;
  const absl::Duration now = clock_.Now();
  sums_[phase()] += absl::ToDoubleSeconds(now - since_);
  if (track_ != nullptr && track_->IsOpen(job_)) {
    track_->Add({.begin_ns = absl::ToInt64Nanoseconds(since_),
                 .end_ns = absl::ToInt64Nanoseconds(now),
                 .step = step_,
                 .kind = static_cast<TraceKind>(phase())});
  }
  since_ = now;
}

void PhaseMeter::Exchange(WorkerPhase phase) {
  if (phase == last_exchange_) return;
  last_exchange_ = phase;
  absl::MutexLock lock(&mutex_);
  // While the program computes, the time of the change does not matter.
  if (waits_ > 0) Close();
  exchange_ = phase;
}

void PhaseMeter::Waits(int change) {
  absl::MutexLock lock(&mutex_);
  if (waits_ == 0 || waits_ + change == 0) Close();
  waits_ += change;
  if (waits_ == 0 && std::exchange(has_landed_, false)) step_ = next_;
}

void PhaseMeter::Program(WorkerPhase phase) {
  absl::MutexLock lock(&mutex_);
  Close();
  program_ = phase;
}

void PhaseMeter::Step(uint64_t next) {
  absl::MutexLock lock(&mutex_);
  if (step_ != next_) Close();  // the program pushed without waiting for all weights
  step_ = next_;
  next_ = next;
  has_landed_ = false;
  if (!has_begun_) return;
  ++sums_.steps;
  const absl::Duration now = clock_.Now();
  if (stepped_at_) durations_.Add(now - *stepped_at_);
  stepped_at_ = now;
  whole_steps_ = sums_;
  whole_steps_[phase()] += absl::ToDoubleSeconds(now - since_);
}

// If the program waits, its step ends when it wakes up (Waits).
void PhaseMeter::Landed() {
  absl::MutexLock lock(&mutex_);
  has_landed_ = waits_ > 0 && step_ != next_;
  if (waits_ > 0 || step_ == next_) return;
  Close();
  step_ = next_;
}

StepDurations PhaseMeter::durations() const {
  absl::MutexLock lock(&mutex_);
  return durations_;
}

WorkerPhases PhaseMeter::whole_steps() const {
  absl::MutexLock lock(&mutex_);
  return whole_steps_;
}

WorkerPhases PhaseMeter::sums() const {
  absl::MutexLock lock(&mutex_);
  WorkerPhases sums = sums_;
  if (has_begun_) {
    sums[phase()] += absl::ToDoubleSeconds(clock_.Now() - since_);
  }
  return sums;
}

}  // namespace syncline
