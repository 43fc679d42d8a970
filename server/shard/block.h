// One block's life: seeded, collecting, frozen while its step is decided, stepped. What a
// member may do to it at its present version; who the members are is the shard's
// business.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "server/shard/shard.h"
#include "server/shard/step.h"

namespace syncline {

// A worker's life: (rank, incarnation).
using WorkerId = std::pair<uint32_t, uint32_t>;

// What a push of a member means at the block's present version.
enum class PushState {
  kWanted,
  kHeld,       // a repetition of what is held already
  kCounted,    // of a step that is over
  kWrongStep,  // of a step that has not come, is complete, or lies before the member's
               // first
  kNotSeeded,
};

class Block {
 public:
  Block(const ShardBlock& spec, const BlockMemory& memory)
      : spec_(spec), memory_(memory) {}

  const ShardBlock& spec() const { return spec_; }
  const BlockMemory& memory() const { return memory_; }
  uint64_t version() const { return version_; }
  uint64_t updates() const { return updates_; }
  bool seeded() const { return seeded_; }
  bool frozen() const { return frozen_; }
  // In rank order.
  std::span<Contribution> contributions() { return contributions_; }
  std::vector<ShardApplied::Contributor> Contributors() const;
  size_t held_bytes() const;

  BlockLabel Label(uint64_t epoch) const { return {spec_.range, version_, epoch}; }

  // The first step that this block has neither completed nor promised to complete.
  uint64_t next_step() const { return version_ + (frozen_ ? 1 : 0); }

  bool TakesSeed() const { return version_ == 0 && contributions_.empty() && !frozen_; }
  // REQUIRES: TakesSeed() and a view of exactly this block.
  void Seed(const BlockView& view);

  PushState StateOf(const ShardMember& member, uint64_t step) const;
  // REQUIRES: StateOf(...) == kWanted.
  void Hold(Contribution contribution);

  // Who waits for a version that is still to come; a later wish replaces an earlier one.
  void Remember(WorkerId worker, uint64_t version) { wishes_[worker] = version; }
  // Removes and returns, in rank order, those whose wish has come true.
  std::vector<WorkerId> TakeFulfilled();

  // Forgets contributions (unless frozen: these are decided) and wishes of all who fail
  // `keep`.
  template <typename Keep>
  void Forget(const Keep& keep) {
    if (!frozen_) {
      std::erase_if(contributions_, [&](const Contribution& one) {
        return !keep(WorkerId(one.from.rank, one.from.incarnation));
      });
    }
    std::erase_if(wishes_, [&](const auto& wish) { return !keep(wish.first); });
  }

  void Freeze() { frozen_ = true; }
  enum class Outcome { kUpdated, kSkipped };
  // The step is over: the next one begins, without contributions.
  void Advance(Outcome outcome);

 private:
  const ShardBlock spec_;
  const BlockMemory memory_;
  uint64_t version_ = 0;
  uint64_t updates_ = 0;  // steps that changed the weights
  bool seeded_ = false;
  bool frozen_ = false;
  std::vector<Contribution> contributions_;
  std::map<WorkerId, uint64_t> wishes_;
};

}  // namespace syncline
