// What a group needs of the way between its members: lanes, a bell to sleep on, and the
// knowledge of who is there. One implementation: shared_wire.h, for ranks of one host.
//
// Thread safety: one thread at a time, the one that drives the group, but Wake().
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/lane.h"

namespace syncline::collective {

class Wire {
 public:
  virtual ~Wire() = default;

  // One for each rank, null for this one: of collective operations, and of sends and
  // receives between two ranks, which keep their own order.
  virtual const std::vector<Lane*>& lanes() = 0;
  virtual const std::vector<Lane*>& direct_lanes() = 0;

  // Tells the others what this rank is in, for those that look why nothing moves.
  virtual void Enter(const CallHeader& header) = 0;

  // Says that this thread is about to sleep: whatever moves from now on wakes it. Look
  // once more whether anything has moved, then Sleep or Stay.
  virtual void PrepareToSleep() = 0;
  virtual void Sleep(absl::Duration timeout) = 0;
  virtual void Stay() = 0;
  // Ends a Sleep now or the next one at once. From any thread.
  virtual void Wake() = 0;

  // Not OK, naming the rank, when one of `ranks` is dead, hangs, has left, or reported a
  // failure, or is in another operation than `header` (null: between two ranks only).
  virtual absl::Status Check(const std::vector<int>& ranks, const CallHeader* header) = 0;
  // Tells all others that this group has failed. The first call counts.
  virtual void Report(const absl::Status& status) = 0;
};

}  // namespace syncline::collective
