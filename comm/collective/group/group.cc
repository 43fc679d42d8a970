#include "comm/collective/group/group.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/machine.h"
#include "comm/base/status.h"
#include "comm/collective/group/meeting.h"

namespace syncline::collective {
namespace {

// How often to look whether all are well; so long a sleeper sleeps that nobody wakes.
constexpr absl::Duration kLook = absl::Milliseconds(5);
// About 50 us with a core for each rank: answers to small operations come sooner.
constexpr int kSpins = 1000;
constexpr int kSpinsOnNetwork = 100;
constexpr int kSpinsWhereCoresAreScarce = 20;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Looking at sockets costs as much as ten looks at memory.
int SpinsOf(const Meeting& meeting, int rank) {
  const bool is_scarce =
      static_cast<int>(DescribeMachine().cores) < meeting.RanksBeside(rank);
  if (is_scarce) return kSpinsWhereCoresAreScarce;
  return meeting.hosts() > 1 ? kSpinsOnNetwork : kSpins;
}

}  // namespace

Group::Group(const GroupOptions& options, Meeting meeting)
    : options_(options),
      wire_(std::move(meeting.wire)),
      local_(meeting.RanksOfEachHost()),
      spins_(SpinsOf(meeting, options.rank)),
      core_({.rank = options.rank,
             .ranks = options.ranks,
             .exact_order = options.exact_order,
             .hosts = meeting.hosts(),
             .local = local_},
            *wire_, *this) {}

absl::StatusOr<std::unique_ptr<Group>> Group::Create(const GroupOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(Meeting meeting, Meet(options));
  std::unique_ptr<Group> group(new Group(options, std::move(meeting)));
  if (group->wire_->tend_every() < absl::InfiniteDuration()) {
    group->tender_ = std::thread([&group = *group] { group.Tend(); });
  }
  // Nobody may leave before all have found its memory.
  SYNCLINE_RETURN_IF_ERROR(
      group->Run({.op = CollectiveOp::kBarrier, .timeout = options.start_timeout}));
  return group;
}

Group::~Group() {
  TakeOver();
  // Whoever leaves with nothing under way only says goodbye.
  TakeIncoming();
  if (core_.HasActive()) core_.Fail(absl::CancelledError("a rank ended the group"));
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
    ends_.SignalAll();
  }
  if (worker_.joinable()) worker_.join();
  if (tender_.joinable()) tender_.join();
}

absl::Status Group::Enqueue(const Handle& pending) {
  if (!failure_.ok()) return failure_;
  incoming_.push_back(pending);
  has_incoming_ = true;
  if (driving_) wire_->Wake();
  return absl::OkStatus();
}

absl::StatusOr<Group::Handle> Group::Start(Call call) {
  SYNCLINE_RETURN_IF_ERROR(core_.CheckCall(call));
  auto pending = std::make_shared<PendingCall>();
  const absl::Duration timeout =
      call.timeout > absl::ZeroDuration() ? call.timeout : options_.timeout;
  pending->deadline = clock_.Now() + timeout;
  pending->call = std::move(call);
  absl::MutexLock lock(&mutex_);
  if (!worker_.joinable()) {
    try {
      worker_ = std::thread([this] { Work(); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot start the thread of a group: ", error.what(),
          "; nothing was begun: raise the limit of processes, or run the operation "
          "instead of starting it"));
    }
  }
  SYNCLINE_RETURN_IF_ERROR(Enqueue(pending));
  if (!driving_) changed_.SignalAll();
  return pending;
}

absl::Status Group::Run(Call call) {
  SYNCLINE_RETURN_IF_ERROR(core_.CheckCall(call));
  auto pending = std::make_shared<PendingCall>();
  const absl::Duration timeout =
      call.timeout > absl::ZeroDuration() ? call.timeout : options_.timeout;
  pending->deadline = clock_.Now() + timeout;
  pending->call = std::move(call);
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(Enqueue(pending));
  }
  return Wait(pending, absl::InfiniteDuration());
}

bool Group::IsDone(const Handle& handle) const { return handle->done; }

absl::Status Group::Wait(const Handle& handle, absl::Duration timeout) {
  const absl::Duration deadline = clock_.Now() + timeout;
  absl::MutexLock lock(&mutex_);
  while (!handle->done) {
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError("the operation still goes on");
    }
    if (driving_ || abort_) {
      changed_.WaitUntil(mutex_, clock_, deadline);
      continue;
    }
    driving_ = true;
    mutex_.Unlock();
    Drive(handle.get(), deadline);
    HandOver();
  }
  return handle->status;
}

void Group::Work() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    if (driving_ || abort_ || (!has_incoming_ && !core_.HasActive())) {
      changed_.Wait(mutex_);
      continue;
    }
    driving_ = true;
    mutex_.Unlock();
    Drive(nullptr, absl::InfiniteDuration());
    HandOver();
  }
}

void Group::TakeIncoming() {
  absl::MutexLock lock(&mutex_);
  // One by one: none is lost where memory for the queue is.
  for (; !incoming_.empty(); incoming_.pop_front()) core_.Add(incoming_.front());
  has_incoming_ = false;
}

bool Group::AdvanceAll() {
  if (has_incoming_) TakeIncoming();
  return core_.Advance();
}

void Group::Drive(const PendingCall* until, absl::Duration deadline) {
  try {
    DriveUntil(until, deadline);
  } catch (const std::exception& error) {
    core_.Fail(absl::ResourceExhaustedError(absl::StrCat(
        "rank ", options_.rank, " has no memory for an operation: ", error.what(),
        "; make it smaller, or choose another algorithm; the group is over")));
  }
}

void Group::DriveUntil(const PendingCall* until, absl::Duration deadline) {
  int idle = 0;
  while (!abort_) {
    if (until != nullptr ? until->done.load() : !core_.HasActive() && !has_incoming_)
      return;
    if (AdvanceAll()) {
      idle = 0;
    } else {
      Idle(&idle);
      if (idle > 0) continue;
    }
    // Also while something moves: it may be something else, and nothing moves forever.
    const absl::Duration now = clock_.Now();
    if (now - looked_ >= kLook) Look();
    if (now >= deadline) return;
  }
}

void Group::Idle(int* idle) {
  if (++*idle < spins_) {
    Pause();
    return;
  }
  *idle = 0;
  wire_->PrepareToSleep();
  if (AdvanceAll() || abort_ || !core_.HasActive()) {
    wire_->Stay();
    return;
  }
  wire_->Sleep(kLook);
}

void Group::Look() {
  looked_ = clock_.Now();
  core_.Look(looked_);
}

void Group::OnFailed(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = status;
  }
  TakeIncoming();
}

void Group::OnDone(PendingCall& pending, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  pending.status = status;
  pending.done = true;
  changed_.SignalAll();
}

}  // namespace syncline::collective
