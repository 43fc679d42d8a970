// A group of ranks that perform collective operations together.
//
// All members must make the same collective calls in the same order; a difference is
// detected and reported. Sends and receives between two ranks have an order of their own.
//
// When a member dies or hangs, all operations in progress fail on all other members,
// within the failure timeout, with an error that names it (FailedRank). The group is then
// unusable: create another one. The output of failed operations is undefined, and is not
// written later.
//
// Thread safety: any thread may start and wait. Collective operations run in the order of
// Start. A thread that waits does the work; if none waits, a thread of the group does.
//
//   MemoryStore store;                              // or any store that all ranks reach
//   auto group = Group::Create(
//       {.name = "step", .rank = rank, .ranks = 4, .store = &store});
//   absl::Status status = (*group)->Run({.op = CollectiveOp::kAllReduce,
//                                        .output = gradient.data(),
//                                        .count = gradient.size()});
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/steady_condition.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/core.h"
#include "comm/collective/group/costs.h"
#include "comm/collective/group/store.h"
#include "comm/collective/group/wire.h"
#include "comm/collective/schedule/select.h"
#include "comm/transport/tcp/tcp.h"

namespace syncline::collective {

struct Meeting;

struct GroupOptions {
  // Must be unique in the store, for all time.
  std::string name;
  int rank = 0;
  int ranks = 1;
  Store* store = nullptr;  // used only by Create
  // F: a member whose process does not run for this long counts as hung. At least 100 ms.
  absl::Duration failure_timeout = absl::Seconds(10);
  // For operations without a timeout of their own. Long, since members may compute for a
  // long time between operations.
  absl::Duration timeout = absl::Minutes(30);
  absl::Duration start_timeout = absl::Minutes(5);

  // Floating-point sums, averages and products combine the ranks' values in the order of
  // ranks, from left to right; BF16 and FP16 are computed in FP32 and rounded once. The
  // result has the same bits for every algorithm, distribution over hosts and
  // segmentation. Must be equal on all members. For the cost see schedule/README.md.
  bool exact_order = false;

  // With several hosts: the IP address at which other hosts reach this one. Empty: the
  // address of the default route.
  std::string address = {};
  // Members with different names do not share memory, wherever they run. Usually empty.
  std::string host = {};
  // For connections between hosts. Must be equal on all members.
  TcpSecurity security = TcpSecurity::kTls;
  // The costs by which the group chooses algorithms (cost_agreement.h): "", "probe", or a
  // file. Rank 0's counts for all members.
  std::string costs = {};
};

class Group : private GroupCore::Observer {
 public:
  using Handle = GroupCore::Handle;

  // Blocks until all members are connected. Fails like Meet (meeting.h).
  static absl::StatusOr<std::unique_ptr<Group>> Create(const GroupOptions& options);
  // Fails operations in progress with Cancelled, also on the other members.
  ~Group() override;

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  // Ranks per host, if all hosts have the same number, with consecutive ranks; otherwise
  // 1.
  int local() const { return local_; }

  // Starts an operation without blocking. The call's memory is in use until it is done.
  // On an error nothing was started.
  absl::StatusOr<Handle> Start(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the operation is done. DeadlineExceeded: it is still running.
  absl::Status Wait(const Handle& handle, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsDone(const Handle& handle) const;
  // Starts an operation and waits until it is done.
  absl::Status Run(Call call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Fails all operations in progress with Cancelled, on all members. The group is
  // unusable afterwards.
  void Abort() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same with another error.
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the kernels of the other hosts have all data that this rank has sent, at
  // most F. An operation may be done earlier. Call it before the process ends without
  // destroying the group.
  void Settle() ABSL_LOCKS_EXCLUDED(mutex_);
  // OK while the group is usable.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the algorithm for a call, and the reason.
  Choice Choose(const Call& call) const { return core_.Choose(call); }
  // The costs by which it chooses, equal on all members.
  const Costs& costs() const { return core_.topology().costs; }
  // Returns where the costs come from, and what is chosen for three sizes of an
  // all-reduce.
  std::string DescribeCosts() const;

 private:
  Group(const GroupOptions& options, Meeting meeting);

  // Waits until all members are here, and agrees on the costs with them.
  absl::Status Agree(const std::vector<int>& host_of) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Enqueue(const Handle& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Driver functions, called by one thread at a time.
  void Drive(const PendingCall* until, absl::Duration deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void DriveUntil(const PendingCall* until, absl::Duration deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool AdvanceAll() ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeIncoming() ABSL_LOCKS_EXCLUDED(mutex_);
  void Look() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFailed(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(PendingCall& pending, const absl::Status& status) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Spins for a while, then sleeps.
  void Idle(int* idle) ABSL_LOCKS_EXCLUDED(mutex_);
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  void Tend() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends this thread's turn as the driver; acquires the mutex.
  void HandOver() ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex_);
  void SendTheRest() ABSL_LOCKS_EXCLUDED(mutex_);
  // Called by the driver: serves a waiting Settle.
  void SettleIfWanted() ABSL_LOCKS_EXCLUDED(mutex_);
  // Becomes the last driver: no other thread drives after this.
  void TakeOver() ABSL_LOCKS_EXCLUDED(mutex_);

  const GroupOptions options_;
  const SteadyClock clock_;
  const std::unique_ptr<Wire> wire_;
  const int local_;  // Problem::local
  const int spins_;

  // Used by the driver only, except its functions about calls.
  GroupCore core_;
  CostSource cost_source_ = CostSource::kBuiltIn;  // constant once created
  absl::Duration looked_ = absl::ZeroDuration();   // time of the last Look

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  std::deque<Handle> incoming_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_incoming_ = false;
  std::atomic<bool> abort_ = false;
  std::atomic<bool> settle_wanted_ = false;
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread worker_;  // created by the first Start without a waiting thread
  bool has_unsent_ ABSL_GUARDED_BY(mutex_) =
      false;              // data is unsent, and no thread drives
  SteadyCondition ends_;  // signalled at the group's end, or when data is unsent
  std::thread tender_;    // only if the wire needs tending
};

}  // namespace syncline::collective
