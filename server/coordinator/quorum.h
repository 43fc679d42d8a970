// Decides when a step of a job with a quorum is closed, and with which contributions. A
// step is closed once all members that take part have contributed to all shards, or a
// grace time after enough of them have.
//
// Only a step that all shards report counts, and only contributions that all shards have.
// So no contribution is applied in parts. Contributions of members that have left do not
// count. All streams have the same order of messages, so every shard still has the
// contributions that a step is closed with.
//
//   watch.Held({.shard = 0, .step = 7, .incarnations = {1, 2}});
//   if (const auto closed = watch.Look(now, members)) ...  // tell all shards
//
// Thread safety: none.
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

  // Sets the shards that have blocks to train. All of them must report a step.
  void SetShards(std::set<uint32_t> shards) { shards_ = std::move(shards); }
  void Held(const StepHeld& held);
  // Notes that a step was closed, by this coordinator or a previous one.
  void Closed(uint64_t step);

  // A step that must be closed now. Members take part from their first_step on.
  struct Verdict {
    uint64_t step = 0;
    std::vector<uint32_t> incarnations = {};
    size_t expected = 0;  // number of members that take part
  };
  std::optional<Verdict> Look(absl::Duration now,
                              const std::vector<MemberRecord>& members);
  // Time when the grace time ends, and Look must be called even without new reports.
  // Infinite: no step waits for it.
  absl::Duration wake_at() const {
    return opened_at_ ? *opened_at_ + grace_ : absl::InfiniteDuration();
  }

 private:
  const size_t quorum_;
  const absl::Duration grace_;
  std::set<uint32_t> shards_;
  std::map<uint32_t, StepHeld> held_;  // by shard, its last report
  uint64_t next_ = 0;                  // first step that is not closed
  // Since when enough members have contributed to the next step to close.
  std::optional<absl::Duration> opened_at_;
};

}  // namespace syncline
