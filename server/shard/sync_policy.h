// The step rule of a job's mode (docs/modes.md): which contributions a block takes, when
// it steps, and for whom it waits. A policy maps facts to rulings and holds no
// contributions; the block does.
//
// Thread safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/base/sync_mode.h"

namespace syncline {

// A member's push, together with the state of the block that it is for.
struct PushFacts {
  uint64_t step = 0;        // the step that it contributes to
  uint64_t version = 0;     // the block's: the step that it collects
  uint64_t first_step = 0;  // the first step that the member may contribute to
  // Mode asp only: the step after the last one that the member has given.
  uint64_t next_step = 0;
  bool is_held = false;      // the block holds the member's contribution to `step`
  bool is_complete = false;  // nothing more is taken for step `version`
  // With a quorum: `step` is over or closed, and includes the member's contribution.
  bool is_counted = false;
};
enum class PushRuling {
  kTake,
  kHeld,     // repeats a contribution that is held
  kCounted,  // repeats a contribution that a past step has counted
  // For a step that is too far ahead, complete, or before the member's first.
  kRefuse,
  kTooLate,  // for a step that was closed without it
};

// What a block holds for the step that it collects.
struct StepFacts {
  size_t expected = 0;    // members that take part in it
  size_t present = 0;     // of them: have contributed
  bool is_limit = false;  // a member has contributed to the last step that is taken
  bool is_asked = false;  // a member waits for a version that has not come
  // With a quorum only. `whole`: members that have contributed to all blocks of the
  // shard. `is_closed`: the coordinator has said whose contributions count.
  size_t whole = 0;
  bool is_closed = false;
};

class SyncPolicy {
 public:
  virtual ~SyncPolicy() = default;

  // Decides what happens to a push.
  virtual PushRuling Judge(const PushFacts& push) const = 0;
  // Returns whether the block makes its step now.
  virtual bool StepsNow(const StepFacts& step) const = 0;
  // Returns whether a member cannot continue before others have contributed.
  virtual bool HoldsUp(const StepFacts& step) const = 0;
  // How many steps after the one that a block collects members may contribute to now.
  virtual uint64_t most_ahead() const = 0;
};

// Returns the policy of a mode: bsp and ssp; bsp with a quorum, whose steps the
// coordinator closes; or asp, in which each member counts its own steps. `most_taken`:
// contributions up to this many steps ahead are taken even if `mode` now allows less,
// because a member that has not heard of the change may send them.
std::unique_ptr<const SyncPolicy> MakeSyncPolicy(const SyncMode& mode,
                                                 uint64_t most_taken = 0);

}  // namespace syncline
