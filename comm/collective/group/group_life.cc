// What a group does when nobody waits for an operation: it lives, settles, and is aborted.
#include "comm/collective/group/group.h"

namespace syncline::collective {

void Group::HandOver() {
  const bool has_unsent = tender_.joinable() && wire_->HasUnsent();
  mutex_.Lock();
  driving_ = false;
  has_unsent_ = has_unsent;
  if (has_unsent) ends_.SignalAll();
  changed_.SignalAll();
}

// An operation is done when sockets do not have all of it yet: the others wait for the rest.
void Group::SendTheRest() {
  while (!abort_ && !has_incoming_) {
    core_.TendIfItIsTime(clock_.Now());
    wire_->Progress();
    if (!wire_->HasUnsent()) return;
    wire_->Sleep(wire_->tend_every());
  }
}

// Between operations the others must still hear of this rank, and get what it gave them.
void Group::Tend() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    if (!has_unsent_) ends_.WaitFor(mutex_, wire_->tend_every() / 2);
    while (driving_ && !stopping_) changed_.Wait(mutex_);
    if (stopping_) return;
    driving_ = true;
    mutex_.Unlock();
    core_.TendIfItIsTime(clock_.Now());
    SendTheRest();
    mutex_.Lock();
    driving_ = false;
    has_unsent_ = false;
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
  core_.Fail(absl::CancelledError("the group was aborted by this process"));
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
