// The group's thread, which makes all calls to NCCL. It launches calls, checks which have
// finished, runs the roll call, and ends everything when a rank is gone.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/status.h"
#include "comm/collective/nccl/nccl_group.h"

namespace syncline::collective {
namespace {

// Time between two rounds while an operation is in progress; otherwise F / kIdleRounds.
constexpr absl::Duration kBusyRound = absl::Milliseconds(10);
constexpr int kIdleRounds = 8;
// The thread polls without sleeping for this long after the last progress.
constexpr absl::Duration kSpin = absl::Microseconds(50);
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);
// Time for aborted kernels to end.
constexpr absl::Duration kAbortTime = absl::Seconds(1);

}  // namespace

bool NcclGroup::IsBusy() const {
  return !is_formed_ || launching_ != nullptr || !under_way_.empty() || !calls_.empty();
}

// The longer an operation takes, the less often the thread checks.
absl::Duration NcclGroup::Pause() const {
  const absl::Duration now = clock_.Now();
  if (IsBusy()) {
    const absl::Duration still = now - moved_;
    return still < kSpin ? absl::ZeroDuration() : std::min(still / 16, kLongestPause);
  }
  return std::max(next_round_ - now, kBusyRound);
}

void NcclGroup::Sleep(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const bool is_awaited = !incoming_.empty() || aborted_ || (leaving_ && !IsBusy());
  if (is_awaited && failure_.ok()) return;
  if (timeout > absl::ZeroDuration()) changed_.WaitFor(mutex_, timeout);
}

void NcclGroup::Work(const NcclUniqueId& id) {
  const Gpu::Current current(*gpu_);
  moved_ = clock_.Now();
  absl::Status status = communicator_->Begin(id);
  while (status.ok() && !has_left_) {
    status = Step();
    if (status.ok()) status = WhyEnd(clock_.Now());
  }
  if (status.ok()) {
    EndInPeace();
  } else {
    Fail(communicator_->MayBeAnother() ? AwaitVerdict(status) : status);
  }
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  changed_.SignalAll();
}

absl::Status NcclGroup::WhyEnd(absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  if (aborted_) {
    return absl::CancelledError("the group was aborted by this process");
  }
  if (!leaving_) return absl::OkStatus();
  has_left_ = incoming_.empty() && !IsBusy();
  if (has_left_) {
    failure_ = absl::FailedPreconditionError("this rank has left the group");
  } else if (now >= leave_by_) {
    return absl::CancelledError("a rank ended the group");
  }
  return absl::OkStatus();
}

absl::Status NcclGroup::Step() {
  const bool has_new = TakeCalls();
  const absl::Duration now = clock_.Now();
  if (has_new) {
    moved_ = now;
    next_round_ = std::min(next_round_, now + kBusyRound);
  }
  SYNCLINE_RETURN_IF_ERROR(TendRollCall(now));
  SYNCLINE_RETURN_IF_ERROR(EndWhatPassed());
  SYNCLINE_RETURN_IF_ERROR(LaunchWhatCan());
  SYNCLINE_RETURN_IF_ERROR(CheckDeadlines(now));
  Sleep(Pause());
  return absl::OkStatus();
}

bool NcclGroup::TakeCalls() {
  absl::MutexLock lock(&mutex_);
  const bool has_new = !incoming_.empty();
  for (; !incoming_.empty(); incoming_.pop_front()) calls_.push_back(incoming_.front());
  return has_new;
}

absl::Status NcclGroup::TendRollCall(absl::Duration now) {
  if (round_ != nullptr) {
    if (!watch_->IsDone(round_)) return absl::OkStatus();
    const absl::Status status = watch_->Wait(round_, absl::ZeroDuration());
    round_ = nullptr;
    if (!status.ok()) {
      // What the failed rank gave before still counts, and other operations may need only
      // that.
      grace_ = options_.group.failure_timeout / kIdleRounds;
      return status;
    }
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(roll_call_.Take(records_));
  }
  if (now < next_round_) return absl::OkStatus();
  next_round_ =
      now + (IsBusy() ? kBusyRound : options_.group.failure_timeout / kIdleRounds);
  {
    absl::MutexLock lock(&mutex_);
    record_ = roll_call_.Answer();
  }
  SYNCLINE_ASSIGN_OR_RETURN(round_, watch_->Start({.op = CollectiveOp::kAllGather,
                                                   .type = ElementType::kU8,
                                                   .input = &record_,
                                                   .output = records_.data(),
                                                   .count = sizeof record_,
                                                   .label = "roll call"}));
  return absl::OkStatus();
}

// NCCL may report a lost connection before the other group knows which rank ended.
absl::Status NcclGroup::AwaitVerdict(const absl::Status& status) {
  const absl::Duration deadline = clock_.Now() + options_.group.failure_timeout;
  while (clock_.Now() < deadline) {
    TakeCalls();  // otherwise Sleep would return at once
    SYNCLINE_RETURN_IF_ERROR(WhyEnd(clock_.Now()));
    SYNCLINE_RETURN_IF_ERROR(TendRollCall(clock_.Now()));
    Sleep(kLongestPause);
  }
  return status;
}

absl::Status NcclGroup::EndWhatPassed() {
  size_t passed = 0;
  for (const Handle& pending : under_way_) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_passed, pending->over.HasPassed());
    if (!has_passed) break;
    ++passed;
  }
  // Asked after the events, because an error may have ended the operations.
  SYNCLINE_RETURN_IF_ERROR(communicator_->IsReady().status());
  for (; passed > 0; --passed) {
    const Handle ended = std::move(under_way_.front());
    under_way_.pop_front();
    Complete(*ended, absl::OkStatus());
  }
  return absl::OkStatus();
}

absl::Status NcclGroup::LaunchWhatCan() {
  while (true) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_ready, communicator_->IsReady());
    if (!is_ready) return absl::OkStatus();
    if (!is_formed_) {
      is_formed_ = true;
      absl::MutexLock lock(&mutex_);
      formed_ = true;
      changed_.SignalAll();
    }
    if (launching_ != nullptr) {
      // The operation is in the stream only now.
      SYNCLINE_RETURN_IF_ERROR(launching_->over.Record(communicator_->stream()));
      under_way_.push_back(std::move(launching_));
      launching_ = nullptr;
      moved_ = clock_.Now();
    }
    if (calls_.empty()) return absl::OkStatus();
    launching_ = std::move(calls_.front());
    calls_.pop_front();
    SYNCLINE_ASSIGN_OR_RETURN(launching_->over, gpu_->MakeEvent());
    SYNCLINE_RETURN_IF_ERROR(communicator_->Launch(launching_->call, launching_->behind));
  }
}

absl::Status NcclGroup::CheckDeadlines(absl::Duration now) {
  if (!is_formed_) {
    if (now - moved_ < options_.group.start_timeout) return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat("NCCL did not connect all ranks within ",
                     absl::FormatDuration(options_.group.start_timeout),
                     "; NCCL_DEBUG=INFO prints what it tries"));
  }
  const PendingNcclCall* const oldest = !under_way_.empty()     ? &*under_way_.front()
                                        : launching_ != nullptr ? &*launching_
                                        : !calls_.empty()       ? &*calls_.front()
                                                                : nullptr;
  const bool is_late = oldest != nullptr && now >= oldest->deadline;
  return is_late ? TooLate(*oldest) : absl::OkStatus();
}

absl::Status NcclGroup::TooLate(const PendingNcclCall& pending) {
  std::vector<int> ranks;
  if (pending.header.sequence == 0) {
    const Call& call = pending.call;
    ranks = {call.root == place_.rank ? call.source : call.root};
  } else {
    absl::MutexLock lock(&mutex_);
    ranks = roll_call_.Behind(pending.header.sequence);
  }
  if (ranks.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(
        Describe(pending.header), " was called by all ranks, but did not end in time"));
  }
  absl::Status status = absl::DeadlineExceededError(
      absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
                   " did not take part in ", Describe(pending.header), " in time"));
  SetFailedRank(status, ranks.front());
  return status;
}

void NcclGroup::Complete(PendingNcclCall& pending, const absl::Status& status) {
  pending.behind = GpuEvent();
  pending.over = GpuEvent();
  moved_ = clock_.Now();
  absl::MutexLock lock(&mutex_);
  if (status.ok() && pending.header.sequence != 0) roll_call_.NoteEnd();
  pending.status = status;
  pending.done = true;
  changed_.SignalAll();
}

// REQUIRES: no operation is in progress.
void NcclGroup::EndInPeace() {
  const absl::Duration deadline =
      clock_.Now() + options_.group.failure_timeout / kIdleRounds;
  absl::StatusOr<bool> is_over = false;
  for (absl::Status status = communicator_->Finalize();
       status.ok() && is_over.ok() && !*is_over && clock_.Now() < deadline;) {
    is_over = communicator_->IsReady();
    std::this_thread::yield();
  }
  if (is_over.ok() && *is_over) communicator_->Destroy();
  communicator_->Abort();
  absl::Status left = absl::AbortedError(absl::StrCat(
      "rank ", place_.rank, " has left the group: form a new one without it"));
  SetFailedRank(left, place_.rank);
  watch_->Fail(left);
}

// Waits for aborted kernels, which may still write; also for a call that was about to be
// launched.
void NcclGroup::AwaitStream() {
  absl::StatusOr<GpuEvent> end = gpu_->MakeEvent();
  if (!end.ok() || !end->Record(communicator_->stream()).ok()) return;
  for (const absl::Duration deadline = clock_.Now() + kAbortTime;
       clock_.Now() < deadline;) {
    const absl::StatusOr<bool> has_passed = end->HasPassed();
    if (!has_passed.ok() || *has_passed) return;
    Sleep(kLongestPause);
  }
}

void NcclGroup::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    failure_ = status;
    changed_.SignalAll();
  }
  watch_->Fail(status);
  for (const absl::Duration end = clock_.Now() + grace_;
       !under_way_.empty() && clock_.Now() < end && EndWhatPassed().ok();) {
    Sleep(kLongestPause);
  }
  communicator_->Abort();
  AwaitStream();
  TakeCalls();
  for (const Handle& pending : under_way_) Complete(*pending, status);
  if (launching_ != nullptr) Complete(*launching_, status);
  for (const Handle& pending : calls_) Complete(*pending, status);
  under_way_.clear();
  calls_.clear();
  launching_ = nullptr;
}

}  // namespace syncline::collective
