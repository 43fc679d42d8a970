// A group of ranks that call collective operations together.
//
// Every member makes the same collective calls in the same order; a difference is found
// and named. Sends and receives between two ranks keep an order of their own. A member
// that dies or hangs ends every operation under way on all others, within the failure
// timeout, with an error that names it (FailedRank); from then on the group is of no use:
// form another one. Output is undefined then, and never written later.
//
// Thread safety: any thread may start and wait; collective operations run in the order of
// Start. Whoever waits does the work, a thread of the group otherwise.
//
//   MemoryStore store;                              // or any store that all ranks reach
//   auto group = Group::Create({.name = "step", .rank = rank, .ranks = 4, .store = &store});
//   absl::Status status = (*group)->Run({.op = CollectiveOp::kAllReduce,
//                                        .output = gradient.data(),
//                                        .count = gradient.size()});
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/steady_condition.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/core.h"
#include "comm/collective/group/store.h"
#include "comm/collective/group/wire.h"
#include "comm/collective/schedule/select.h"
#include "comm/transport/tcp/tcp.h"

namespace syncline::collective {

struct Meeting;

struct GroupOptions {
  // Never used twice with the same store.
  std::string name;
  int rank = 0;
  int ranks = 1;
  Store* store = nullptr;  // used by Create only
  // F: a member whose process does not run for so long hangs. 100 ms at least.
  absl::Duration failure_timeout = absl::Seconds(10);
  // Of an operation that names none: members may compute for long between operations.
  absl::Duration timeout = absl::Minutes(30);
  absl::Duration start_timeout = absl::Minutes(5);

  // Sums, averages and products of floating point combine the ranks' values in the order of
  // ranks, from left to right, BF16 and FP16 in FP32 and rounded once: the same bits whichever
  // algorithm is chosen, however ranks are spread over hosts, and whatever is cut into pieces.
  // All members say the same. What it costs: schedule/README.md.
  bool exact_order = false;

  // Where members are on several hosts: the IP address at which the others reach this one.
  // Empty: that of the default route.
  std::string address = {};
  // Members that say different names share no memory, wherever they run. Usually empty.
  std::string host = {};
  // Of connections between hosts. All members say the same.
  TcpSecurity security = TcpSecurity::kTls;
};

class Group : private GroupCore::Observer {
 public:
  using Handle = GroupCore::Handle;

  // Blocks until all members are there. Errors: Meet (meeting.h).
  static absl::StatusOr<std::unique_ptr<Group>> Create(const GroupOptions& options);
  // What is under way ends with Cancelled, on the others, too.
  ~Group() override;

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  // Ranks of each host, where all have as many, with consecutive numbers; 1 otherwise.
  int local() const { return local_; }

  // Returns at once; memory of the call stays in use until it is done. An error: nothing
  // was begun.
  absl::StatusOr<Handle> Start(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  // DeadlineExceeded: it still goes on.
  absl::Status Wait(const Handle& handle, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsDone(const Handle& handle) const;
  // Starts and waits to the end.
  absl::Status Run(Call call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends everything under way, here and on all members, with Cancelled. The group is of no
  // use from then on.
  void Abort() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until what this rank has given is in the hands of the others' hosts, F at most: an
  // operation is done before. Call it before a process ends that does not end its group.
  void Settle() ABSL_LOCKS_EXCLUDED(mutex_);
  // OK while the group is of use.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Which algorithm a call gets, and why.
  Choice Choose(const Call& call) const { return core_.Choose(call); }

 private:
  Group(const GroupOptions& options, Meeting meeting);

  absl::Status Enqueue(const Handle& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The driver's part: one thread at a time.
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
  // The last act of a driver that leaves: takes the mutex.
  void HandOver() ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex_);
  void SendTheRest() ABSL_LOCKS_EXCLUDED(mutex_);
  // Becomes the driver, for good: nobody else drives any more.
  void TakeOver() ABSL_LOCKS_EXCLUDED(mutex_);

  const GroupOptions options_;
  const SteadyClock clock_;
  const std::unique_ptr<Wire> wire_;
  const int local_;  // Problem::local
  const int spins_;

  // Of the driver, but for its functions about calls.
  GroupCore core_;
  absl::Duration looked_ = absl::ZeroDuration();  // when it did last

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  std::deque<Handle> incoming_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_incoming_ = false;
  std::atomic<bool> abort_ = false;
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread worker_;  // made by the first Start that nobody waits for
  bool has_unsent_ ABSL_GUARDED_BY(mutex_) = false;  // and nobody drives
  SteadyCondition ends_;  // the group does, or something is unsent
  std::thread tender_;    // where the wire needs it
};

}  // namespace syncline::collective
