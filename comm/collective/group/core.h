// What a group does, without threads, locks and clock: it keeps the order of operations, runs
// them over a wire, and ends all of them where a rank is gone or late.
//
// Group (group.h) gives it threads and the time, tests/group_sim simulated time.
//
// Thread safety: one thread at a time, but for the const functions about calls.
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

// An operation from its call to its end.
struct PendingCall {
  Call call;
  CallHeader header;
  absl::Duration deadline;
  std::vector<std::byte> scaled = {};  // input of a premultiplied sum
  std::unique_ptr<Task> task;          // once begun
  bool moved = false;                  // since the last look
  absl::Status status;                 // once done
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

  // Called inside Advance, Look and Fail.
  class Observer {
   public:
    virtual ~Observer() = default;
    // The group is over. What was called meanwhile may still be given to Add.
    virtual void OnFailed(const absl::Status& status) = 0;
    // Nothing reads or writes the call's memory any more: now set status and done.
    virtual void OnDone(PendingCall& pending, const absl::Status& status) = 0;
  };

  // `wire` and `observer` outlive it.
  GroupCore(const GroupCoreOptions& options, Wire& wire, Observer& observer);

  absl::Status CheckCall(const Call& call) const;
  // Which algorithm a call gets, and why.
  Choice Choose(const Call& call) const;

  // At the end of its queue. REQUIRES: CheckCall.
  void Add(const Handle& pending);
  bool HasActive() const;
  // Moves what can move now. Whether anything moved.
  bool Advance();
  // Fails the group where a rank that is needed is gone, or an operation is late. Some
  // milliseconds apart while anything is active.
  void Look(absl::Duration now);
  // What the wire needs from time to time, also while nothing is active.
  void TendIfItIsTime(absl::Duration now);
  // Tells the others, and ends everything.
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
  const Topology topology_;
  Wire& wire_;
  Observer& observer_;

  Queue collectives_;
  std::vector<Queue> sends_;     // by peer
  std::vector<Queue> receives_;  // by peer
  std::vector<uint64_t> sent_;   // operations with a peer, so far
  std::vector<uint64_t> received_;
  absl::Duration tended_ = absl::ZeroDuration();  // when it was, last
  uint64_t begun_ = 0;                            // collective operations
  uint64_t boarded_ = 0;                          // of them on the board
  std::map<std::string, std::shared_ptr<const Schedule>> schedules_;
};

}  // namespace syncline::collective
