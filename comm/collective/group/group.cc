#include "comm/collective/group/group.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/machine.h"
#include "comm/base/status.h"
#include "comm/collective/group/cost_agreement.h"
#include "comm/collective/group/meeting.h"

namespace syncline::collective {
namespace {

// Interval of checks for failures, and the longest sleep without a wake-up.
constexpr absl::Duration kLook = absl::Milliseconds(5);
// About 50 us if each rank has a core, since small operations are answered within that
// time.
constexpr int kSpins = 1000;
constexpr int kSpinsOnNetwork = 100;
constexpr int kSpinsWhereCoresAreScarce = 20;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Checking sockets costs as much as ten checks of memory.
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
  const std::vector<int> host_of = meeting.host_of;
  std::unique_ptr<Group> group(new Group(options, std::move(meeting)));
  if (group->wire_->tend_every() < absl::InfiniteDuration()) {
    group->tender_ = std::thread([&group = *group] { group.Tend(); });
  }
  // A rank must not leave before all have opened its memory, so this waits for all.
  SYNCLINE_RETURN_IF_ERROR(group->Agree(host_of));
  return group;
}

absl::Status Group::Agree(const std::vector<int>& host_of) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const AgreedCosts agreed,
      AgreeOnCosts({options_.costs, host_of, options_.start_timeout}, *this));
  core_.SetCosts(agreed.costs);
  cost_source_ = agreed.source;
  return absl::OkStatus();
}

std::string Group::DescribeCosts() const {
  return absl::StrCat(
      DescribeCostsOf(core_.topology(), cost_source_), "; ",
      DescribeChoices({options_.ranks, local_, options_.exact_order}, core_.topology()));
}

Group::~Group() {
  TakeOver();
  // A rank that leaves with no operation in progress only says goodbye.
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
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start the thread of a group: ", error.what(),
                       "; nothing was started: raise the limit of processes, or run the "
                       "operation synchronously"));
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
      return absl::DeadlineExceededError("the operation is still running");
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
  // Moves calls one by one, so that none is lost if the queue runs out of memory.
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
        "; make it smaller, or choose another algorithm; the group has ended")));
  }
}

void Group::DriveUntil(const PendingCall* until, absl::Duration deadline) {
  int idle = 0;
  while (!abort_) {
    if (until != nullptr ? until->done.load() : !core_.HasActive() && !has_incoming_)
      return;
    SettleIfWanted();
    if (AdvanceAll()) {
      idle = 0;
    } else {
      Idle(&idle);
      if (idle > 0) continue;
    }
    // Checks also while data moves, because it may belong to another operation than the
    // one that is stuck.
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
  if (AdvanceAll() || abort_ || settle_wanted_ || !core_.HasActive()) {
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
