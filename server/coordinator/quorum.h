// When a step of a job with a quorum is closed, and with whose contributions: once everybody
// who takes part has given it to all shards, or so long after enough of them have.
//
// It goes by what all shards say of one step, so a contribution that is in parts nowhere
// counts. What shards held for members that are gone does not count: with the same message
// order on all streams every shard still has what a step is closed with.
//
//   watch.Held({.shard = 0, .step = 7, .incarnations = {1, 2}});
//   if (const auto closed = watch.Look(now, members)) ...  // tell all shards
//
// Thread safety: none; pure, but for what it remembers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/sync_mode.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

class QuorumWatch {
 public:
  explicit QuorumWatch(const SyncMode& mode)
      : quorum_(mode.quorum), grace_(absl::Milliseconds(mode.grace_ms)) {}

  // Those that have blocks to train: each of them is heard.
  void SetShards(std::set<uint32_t> shards) { shards_ = std::move(shards); }
  void Held(const StepHeld& held);
  // A step that was closed, by this coordinator or the one before it.
  void Closed(uint64_t step);

  // Of a step that is to be closed now. A member takes part in it from its first_step on.
  struct Verdict {
    uint64_t step = 0;
    std::vector<uint32_t> incarnations = {};
    size_t expected = 0;  // members who take part in it
  };
  std::optional<Verdict> Look(absl::Duration now,
                              const std::vector<MemberRecord>& members);
  // When to look again though nobody says anything: the grace time is over. Infinite:
  // there is no need to.
  absl::Duration wake_at() const {
    return opened_at_ ? *opened_at_ + grace_ : absl::InfiniteDuration();
  }

 private:
  const size_t quorum_;
  const absl::Duration grace_;
  std::set<uint32_t> shards_;
  std::map<uint32_t, StepHeld> held_;  // by shard, the last word of each
  uint64_t next_ = 0;                  // the first step that is not closed
  // Since when enough have contributed to the step that is closed next.
  std::optional<absl::Duration> opened_at_;
};

}  // namespace syncline
