#include "worker/client/phase_meter.h"

namespace syncline {

void PhaseMeter::Begin() {
  absl::MutexLock lock(&mutex_);
  has_begun_ = true;
  since_ = clock_.Now();
  sums_ = {};
}

// What lasted until now.
void PhaseMeter::Close() {
  if (!has_begun_) return;
  const absl::Duration now = clock_.Now();
  sums_[phase()] += absl::ToDoubleSeconds(now - since_);
  since_ = now;
}

void PhaseMeter::Exchange(WorkerPhase phase) {
  if (phase == last_exchange_) return;
  last_exchange_ = phase;
  absl::MutexLock lock(&mutex_);
  // Behind the back of a program that computes it does not matter when.
  if (waits_ > 0) Close();
  exchange_ = phase;
}

void PhaseMeter::Waits(int change) {
  absl::MutexLock lock(&mutex_);
  if (waits_ == 0 || waits_ + change == 0) Close();
  waits_ += change;
}

void PhaseMeter::Program(WorkerPhase phase) {
  absl::MutexLock lock(&mutex_);
  Close();
  program_ = phase;
}

void PhaseMeter::Step() {
  absl::MutexLock lock(&mutex_);
  if (has_begun_) ++sums_.steps;
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
