// The step rule of a job's mode (docs/modes.md): which contributions a block takes, when it
// steps, and for whom it waits. Facts in, ruling out: whoever holds contributions, and
// where, is the block's business.
//
// Thread safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/base/sync_mode.h"

namespace syncline {

// A member's push, beside the block that it is for.
struct PushFacts {
  uint64_t step = 0;         // that it contributes to
  uint64_t version = 0;      // of the block: the step that it collects
  uint64_t first_step = 0;   // that the member may contribute to
  uint64_t next_step = 0;    // mode asp: the one after those that it has given
  bool is_held = false;      // what the member gave to that step
  bool is_complete = false;  // nothing more is taken for step `version`
  // Of a quorum: `step` is over, or closed, and what the member gave to it is part of it.
  bool is_counted = false;
};
enum class PushRuling {
  kTake,
  kHeld,     // a repetition of what is held already
  kCounted,  // a repetition of what a step that is over has counted
  kRefuse,  // of a step that has not come, is complete, or lies before the member's first
  kTooLate,  // of a step that was closed without it
};

// What a block holds for the step that it collects.
struct StepFacts {
  size_t expected = 0;    // members that take part in it
  size_t present = 0;     // of them, those who have contributed
  bool is_limit = false;  // somebody has contributed to the last step that is taken
  bool is_asked = false;  // a member has asked for a version that has not come
  // Of a quorum: members who have contributed to all blocks of the shard, and whether the
  // coordinator has said whose contributions count.
  size_t whole = 0;
  bool is_closed = false;
};

class SyncPolicy {
 public:
  virtual ~SyncPolicy() = default;

  virtual PushRuling Judge(const PushFacts& push) const = 0;
  // Whether the block makes its step now.
  virtual bool StepsNow(const StepFacts& step) const = 0;
  // Whether somebody cannot go on before the others have contributed.
  virtual bool HoldsUp(const StepFacts& step) const = 0;
  // Steps after the one that a block collects for which members may contribute now.
  virtual uint64_t most_ahead() const = 0;
};

// bsp and ssp; bsp with a quorum, whose steps the coordinator closes; asp, whose members
// each count steps of their own. `most_taken`: contributions so far ahead are taken although
// the mode says less by now, as whoever has not heard of it may give them.
std::unique_ptr<const SyncPolicy> MakeSyncPolicy(const SyncMode& mode,
                                                 uint64_t most_taken = 0);

}  // namespace syncline
