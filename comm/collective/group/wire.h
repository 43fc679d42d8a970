// What a group needs of the way between its members: lanes, a bell to sleep on, and the
// knowledge of who is there. Within a host shared_wire.h, between hosts tcp_wire.h, and
// mixed_wire.h where a group has both.
//
// Thread safety: one thread at a time, the one that drives the group, but Wake().
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/collective/group/call.h"
#include "comm/collective/group/lane.h"

namespace syncline::collective {

class SharedWire;

class Wire {
 public:
  virtual ~Wire() = default;

  // One for each rank, null for this one: of collective operations, and of sends and
  // receives between two ranks, which keep their own order.
  virtual const std::vector<Lane*>& lanes() = 0;
  virtual const std::vector<Lane*>& direct_lanes() = 0;
  // Not null where all ranks share memory: small operations need no lanes there.
  virtual SharedWire* board() { return nullptr; }

  // Sends what was committed, and takes what has arrived. Called before each look at lanes,
  // and when an operation is over.
  virtual void Progress() {}
  // Whether Progress() must be called again before all that was committed is in the hands of
  // this host.
  virtual bool HasUnsent() const { return false; }
  // What must be done from time to time while nobody drives, too, and how often.
  virtual void Tend() {}
  virtual absl::Duration tend_every() const { return absl::InfiniteDuration(); }

  // Until what was committed is in the hands of the others' hosts, F at most: from then on
  // this process may end.
  virtual void Settle() {}

  // Tells the others what this rank is in, for those that look why nothing moves.
  virtual void Enter(const CallHeader& header) = 0;
  // The ranks that have not entered the collective operation of that number, as far as this
  // one knows.
  virtual std::vector<int> Behind(uint64_t sequence) const = 0;

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

// What a rank says that it has found: the same words whichever way they came.
absl::Status ReportedBy(int reporter, int self, absl::Status status);
// OK, or how `entered`, in which `rank` is, differs from `header`.
absl::Status CompareEntered(int rank, const CallHeader& entered,
                            const CallHeader& header);

// Whether somebody whose life shows by a number that moves still lives.
class Liveness {
 public:
  explicit Liveness(absl::Duration failure_timeout) : failure_timeout_(failure_timeout) {}

  // False when `number` has stood still for the failure timeout while this was looking.
  bool Look(uint64_t number, absl::Duration now);

 private:
  const absl::Duration failure_timeout_;
  uint64_t number_ = 0;
  absl::Duration since_ = absl::ZeroDuration();
  absl::Duration looked_ = -absl::InfiniteDuration();
};

// Of the failure timeout: a stopped process is found after between F and F plus this.
inline constexpr int kBeatsPerTimeout = 8;

}  // namespace syncline::collective
