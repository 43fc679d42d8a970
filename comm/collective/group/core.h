// The logic of a group, without threads, locks and clock. It keeps the order of
// operations, runs them over a wire, and fails all of them when a rank is lost or late.
//
// Group (group.h) adds threads and real time; tests/group_sim adds simulated time.
//
// Thread safety: one thread at a time, except the const functions about calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/task.h"
#include "comm/collective/group/wire.h"
#include "comm/collective/schedule/select.h"

namespace syncline::collective {

// An operation from its call to its completion.
struct PendingCall {
  Call call;
  CallHeader header;
  absl::Duration deadline;
  std::vector<std::byte> scaled = {};  // scaled input of a premultiplied sum
  std::unique_ptr<Task> task;          // set once begun
  bool moved = false;                  // since the last Look
  absl::Status status;                 // valid once done
  std::atomic<bool> done = false;
};

struct GroupCoreOptions {
  int rank = 0;
  int ranks = 1;
  bool exact_order = false;
  int hosts = 1;
  int local = 1;  // Problem::local
};

class GroupCore {
 public:
  using Handle = std::shared_ptr<PendingCall>;

  // Called within Advance, Look and Fail.
  class Observer {
   public:
    virtual ~Observer() = default;
    // The group has failed. Calls that were made meanwhile may still be passed to Add.
    virtual void OnFailed(const absl::Status& status) = 0;
    // The call's memory is no longer accessed. The callee must now set status and done.
    virtual void OnDone(PendingCall& pending, const absl::Status& status) = 0;
  };

  // `wire` and `observer` must outlive the core.
  GroupCore(const GroupCoreOptions& options, Wire& wire, Observer& observer);

  absl::Status CheckCall(const Call& call) const;
  // Returns the algorithm for a call, and the reason.
  Choice Choose(const Call& call) const;
  const Topology& topology() const { return topology_; }
  // Replaces the default costs. REQUIRES: all members get the same, with no operation in
  // progress.
  void SetCosts(const Costs& costs) { topology_.costs = costs; }

  // Appends a call to its queue. REQUIRES: CheckCall returned OK.
  void Add(const Handle& pending);
  bool HasActive() const;
  // Moves data that can move now. Returns whether any moved.
  bool Advance();
  // Fails the group when a rank that is needed is gone, or an operation is late. Call
  // every few milliseconds while an operation is active.
  void Look(absl::Duration now);
  // Does the wire's periodic work if it is due. Call it also while no operation is
  // active.
  void TendIfItIsTime(absl::Duration now);
  // Fails the group: tells the other ranks, and ends all operations.
  void Fail(const absl::Status& status);

 private:
  using Queue = std::deque<Handle>;

  Problem ProblemOf(const Call& call) const;
  bool IsExact(const Call& call) const;
  absl::StatusOr<std::shared_ptr<const Schedule>> ScheduleFor(const Problem& problem,
                                                              Algorithm algorithm);
  absl::Status Begin(PendingCall& pending);
  void Premultiply(PendingCall& pending) const;
  bool AdvanceFront(Queue& queue);
  void Complete(PendingCall& pending, const absl::Status& status);
  absl::Status CheckFront(Queue& queue, absl::Duration now);
  absl::Status CheckPeers(const PendingCall& pending);
  absl::Status TooLate(const PendingCall& pending) const;
  static absl::Status WithItsOwn(const absl::Status& status, const PendingCall& pending);

  const GroupCoreOptions options_;
  Topology topology_;
  Wire& wire_;
  Observer& observer_;

  Queue collectives_;
  std::vector<Queue> sends_;     // by peer
  std::vector<Queue> receives_;  // by peer
  std::vector<uint64_t> sent_;   // number of operations with each peer so far
  std::vector<uint64_t> received_;
  absl::Duration tended_ = absl::ZeroDuration();  // time of the last tending
  uint64_t begun_ = 0;                            // number of collective operations
  uint64_t boarded_ = 0;                          // of these, on the board
  std::map<std::string, std::shared_ptr<const Schedule>> schedules_;
};

}  // namespace syncline::collective
