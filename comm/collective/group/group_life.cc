// The functions of a group that work while no thread waits for an operation: tending,
// settling and aborting.
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

// An operation may be done before the sockets have taken all its data, which the other
// ranks need.
void Group::SendTheRest() {
  while (!abort_ && !has_incoming_) {
    core_.TendIfItIsTime(clock_.Now());
    wire_->Progress();
    if (!wire_->HasUnsent()) return;
    wire_->Sleep(wire_->tend_every());
  }
}

// Between operations the other ranks still need heartbeats, and the data that this rank
// gave.
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
  Fail(absl::CancelledError("the group was aborted by this process"));
}

void Group::Fail(const absl::Status& status) {
  TakeOver();
  core_.Fail(status);
  absl::MutexLock lock(&mutex_);
  driving_ = false;
  changed_.SignalAll();
}

void Group::Settle() {
  const absl::Duration deadline = clock_.Now() + options_.failure_timeout;
  absl::MutexLock lock(&mutex_);
  // The driver may be busy for long, in a receive for which nothing comes. In that case
  // the driver settles.
  if (driving_) {
    settle_wanted_ = true;
    wire_->Wake();
  }
  while (driving_ && settle_wanted_ && changed_.WaitUntil(mutex_, clock_, deadline)) {
  }
  if (driving_) return;
  settle_wanted_ = false;
  driving_ = true;
  mutex_.Unlock();
  wire_->Settle();
  mutex_.Lock();
  driving_ = false;
  changed_.SignalAll();
}

void Group::SettleIfWanted() {
  if (!settle_wanted_) return;
  wire_->Settle();
  absl::MutexLock lock(&mutex_);
  settle_wanted_ = false;
  changed_.SignalAll();
}

absl::Status Group::status() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace syncline::collective
