// The interface between a group and its transport: lanes, sleep and wake-up, and the
// state of the other members. shared_wire.h works within a host, tcp_wire.h between
// hosts, and mixed_wire.h combines both.
//
// Thread safety: used by one thread at a time, the group's driver, except Wake().
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

  // One lane per rank, null for this one. lanes(): collective operations; direct_lanes():
  // sends and receives between two ranks, which have an order of their own.
  virtual const std::vector<Lane*>& lanes() = 0;
  virtual const std::vector<Lane*>& direct_lanes() = 0;
  // Not null if all ranks share memory: small operations then use the board.
  virtual SharedWire* board() { return nullptr; }

  // Sends committed data and receives what has arrived. Called before each look at the
  // lanes, and at the end of an operation.
  virtual void Progress() {}
  // Whether Progress() must be called again until this host's kernel has all committed
  // data.
  virtual bool HasUnsent() const { return false; }
  // Periodic work, and its interval; also needed while no thread drives the group.
  virtual void Tend() {}
  virtual absl::Duration tend_every() const { return absl::InfiniteDuration(); }

  // Blocks until the other hosts' kernels have all committed data, at most F. After that
  // this process may end.
  virtual void Settle() {}

  // Announces this rank's current operation, for ranks that look for the reason of a
  // delay.
  virtual void Enter(const CallHeader& header) = 0;
  // Returns the ranks that, as far as this one knows, have not entered this collective
  // operation.
  virtual std::vector<int> Behind(uint64_t sequence) const = 0;

  // Announces that this thread is about to sleep: any later event wakes it. Check for
  // events once more, then call Sleep or Stay.
  virtual void PrepareToSleep() = 0;
  virtual void Sleep(absl::Duration timeout) = 0;
  virtual void Stay() = 0;
  // Ends the present Sleep, or the next one at once. Any thread.
  virtual void Wake() = 0;

  // Not OK, naming the rank, when one of `ranks` is dead, hangs, has left, reported a
  // failure, or is in another operation than `header` (null: an operation between two
  // ranks).
  virtual absl::Status Check(const std::vector<int>& ranks, const CallHeader* header) = 0;
  // Tells all other ranks that the group has failed. Only the first call counts.
  virtual void Report(const absl::Status& status) = 0;
};

// Returns the error for a failure that `reporter` found; equal for every wire.
absl::Status ReportedBy(int reporter, int self, absl::Status status);
// Returns OK, or how `entered`, the operation of `rank`, differs from `header`.
absl::Status CompareEntered(int rank, const CallHeader& entered,
                            const CallHeader& header);

// Judges from a changing number, such as a heartbeat, whether a peer is alive.
class Liveness {
 public:
  explicit Liveness(absl::Duration failure_timeout) : failure_timeout_(failure_timeout) {}

  // Returns false when `number` has not changed for the failure timeout while this was
  // observing.
  bool Look(uint64_t number, absl::Duration now);

 private:
  const absl::Duration failure_timeout_;
  uint64_t number_ = 0;
  absl::Duration since_ = absl::ZeroDuration();
  absl::Duration looked_ = -absl::InfiniteDuration();
};

// Heartbeats per failure timeout F. A stopped process is detected after F to F + F/8.
inline constexpr int kBeatsPerTimeout = 8;

}  // namespace syncline::collective
