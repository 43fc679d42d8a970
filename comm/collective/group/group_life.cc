// What a group does when nobody waits for an operation: it lives, settles, and is aborted.
#include "comm/collective/group/group.h"

namespace syncline::collective {

// Between operations the others must still hear of this rank.
void Group::Tend() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    ends_.WaitFor(mutex_, wire_->tend_every());
    while (driving_ && !stopping_) changed_.Wait(mutex_);
    if (stopping_) return;
    driving_ = true;
    mutex_.Unlock();
    wire_->Tend();
    mutex_.Lock();
    driving_ = false;
    changed_.SignalAll();
  }
}

void Group::TakeOver() {
  abort_ = true;
  wire_->Wake();
  absl::MutexLock lock(&mutex_);
  while (driving_) changed_.Wait(mutex_);
  driving_ = true;
}

void Group::Abort() {
  TakeOver();
  FailAll(absl::CancelledError("the group was aborted by this process"));
  absl::MutexLock lock(&mutex_);
  driving_ = false;
  changed_.SignalAll();
}

void Group::Settle() {
  const absl::Duration deadline = clock_.Now() + options_.failure_timeout;
  absl::MutexLock lock(&mutex_);
  while (driving_ && changed_.WaitUntil(mutex_, clock_, deadline)) {
  }
  if (driving_) return;  // whoever drives sends it
  driving_ = true;
  mutex_.Unlock();
  wire_->Settle();
  mutex_.Lock();
  driving_ = false;
  changed_.SignalAll();
}

absl::Status Group::status() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace syncline::collective
