// One block's life: seeded, collecting, frozen while its step is decided, stepped. What a
// member may do to it at its present version; who the members are is the shard's
// business.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/shard/record.h"
#include "server/shard/shard.h"
#include "server/shard/step.h"
#include "server/shard/sync_policy.h"

namespace syncline {

// A worker's life: (rank, incarnation).
using WorkerId = std::pair<uint32_t, uint32_t>;

// What a member waits for.
struct Wish {
  uint64_t version = 0;
  std::optional<uint64_t> held = std::nullopt;  // ViewDigest of the member's own values
};

// What members gave to one step that is not over.
struct Collection {
  std::vector<Contribution> contributions = {};
  size_t in_order = 0;  // so many are in rank order; the others came since
  size_t present = 0;   // of them, those of present members
  // By rank: 1 + the incarnation whose contribution came last, 0 without. A push must not
  // look through all that others have pushed: that is quadratic in the workers.
  std::vector<uint64_t> slots = {};
  // Those whose contribution counts, no members any more.
  std::vector<ShardApplied::Contributor> departed = {};

  bool Holds(WorkerId worker) const {
    return worker.first < slots.size() &&
           slots[worker.first] == uint64_t{worker.second} + 1;
  }
  void Hold(Contribution contribution);
  // Those of one rank stay in the order in which they came.
  void SortByRank();
  bool IsEmpty() const { return contributions.empty() && departed.empty(); }
  // Takes out what others than these lives gave, but for what leavers handed over, and
  // returns whose it was.
  std::vector<WorkerId> LeaveOut(const std::set<uint32_t>& incarnations);
  void Clear();

  // Of all who fail `keep`, except those that count already: in the accumulator, or parting.
  template <typename Keep>
  void Forget(const Keep& keep) {
    SortByRank();
    std::erase_if(contributions, [&](Contribution& one) {
      if (keep(WorkerId(one.from.rank, one.from.incarnation))) return false;
      if (!one.bequeathed) --present;
      one.bequeathed = one.from.parting && !one.view.tiles.empty();
      if (one.bequeathed) return false;
      const bool counts = one.view.tiles.empty() && one.from.samples > 0;
      if (counts) departed.push_back(one.from);
      ClearSlot(one.from);
      return true;
    });
    in_order = contributions.size();
  }

 private:
  void ClearSlot(const ShardApplied::Contributor& from);
};

// What pushes of a tensor are encoded with.
struct PushCodecs {
  CodecSet regular = {};
  const Codec* parting = nullptr;
};

class Block {
 public:
  Block(const ShardBlock& spec, BlockMemory memory)
      : spec_(spec), memory_(std::move(memory)) {}

  const ShardBlock& spec() const { return spec_; }
  const BlockMemory& memory() const { return memory_; }
  uint64_t version() const { return version_; }
  uint64_t updates() const { return updates_; }
  bool seeded() const { return seeded_; }
  bool frozen() const { return frozen_; }
  // Everyone whose contribution to this step counts, in rank order.
  std::vector<ShardApplied::Contributor> Contributors() const;
  // How many contributions of present members are held.
  size_t present() const { return now_.present; }
  // For the step that it collects, of which `expected` members take part.
  StepFacts FactsOf(size_t expected, const SyncPolicy& policy) const;
  // Samples behind the sum of this update: what is held, and what was added before. Those
  // of parting contributions only where there are no others.
  double samples() const { return Counted().Divisor(); }
  // What its step sums up. REQUIRES: SetWeights was called.
  BlockSum Sum() const;

  // ---- Records ----

  // Of the step under way, without its digest. `sum`: what it holds where contributions are
  // larger, or gone; the caller puts it there. REQUIRES: SetWeights was called.
  StepRecord Record(StepRecord::Payload sum, BufferPool& pool) const;
  // The gradient of this step is also written there.
  void WriteSum(std::span<float> sum) { written_ = sum; }
  // Takes the place of the contributions that the step had.
  // REQUIRES: it is of this block and version. InvalidArgument when it makes no sense; then
  // nothing changes.
  absl::Status Restore(const StepRecord& record, const PushCodecs& codecs);
  // Of its present version; the step's record takes its place.
  absl::Status RestoreParting(const PartingRecord& record, const Codec* codec);
  absl::Status RestoreSeed(const SeedRecord& record);
  uint32_t Digest() const;
  size_t held_bytes() const;

  BlockLabel Label(uint64_t epoch) const { return {spec_.range, version_, epoch}; }

  // The first step that this block has neither completed nor promised to complete.
  uint64_t next_step() const { return version_ + (frozen_ ? 1 : 0); }

  // The first values stay: somebody may hold them, and deltas are added to them.
  bool TakesSeed() const { return !seeded_; }
  // REQUIRES: TakesSeed() and a view of exactly this block.
  void Seed(const BlockView& view);

  // The optimizer's state that it is to begin with, of which so many arrays have come.
  struct BegunState {
    WorkerId from = {};
    uint64_t updates = 0;
    uint32_t arrays = 0;
  };
  const std::optional<BegunState>& begun_state() const { return begun_state_; }
  void SetBegunState(const BegunState& begun) { begun_state_ = begun; }
  // It begins with what has come, or with zeros, whatever has. REQUIRES: TakesSeed().
  void BeginAfter(uint64_t updates) { updates_ = updates; }
  void BeginWithoutState();

  // Whether it holds this member's contribution to its present version.
  bool Holds(const ShardMember& member) const {
    return now_.Holds({member.rank, member.incarnation});
  }
  PushFacts FactsOf(const ShardMember& member, uint64_t step) const;
  // Lives that gave to its present version, but for leavers. Of a quorum.
  std::vector<uint32_t> Givers() const;
  // What others than these gave to its present version is not part of it: see Collection.
  std::vector<WorkerId> LeaveOut(const std::set<uint32_t>& incarnations) {
    return now_.LeaveOut(incarnations);
  }
  // What this life handed over when it left is part of that step.
  bool HasParted(WorkerId worker, uint64_t step) const {
    const auto parted = parted_.find(worker);
    return parted != parted_.end() && parted->second == step;
  }
  // For its present version or, where the policy lets members run ahead, a later step.
  // REQUIRES: SyncPolicy::Judge(FactsOf(...)) == kTake.
  void Hold(uint64_t step, Contribution contribution);

  // Puts the contributions into rank order and gives each its weight in the sum: its share
  // of the samples, or its samples where the sum is kept between steps and their number is
  // not known yet. Finds the rate factor.
  void SetWeights();
  // What the learning rate is multiplied with: the word of the contributor that joined
  // first, whatever came first. When all skip, that of the step before. REQUIRES:
  // SetWeights was called.
  float rate_factor() const { return rate_factor_; }
  // All held contributions were added to the accumulator.
  void MarkAdded();

  // Between two steps: nothing is held, nothing waits for a decision.
  bool IsQuiet() const { return now_.IsEmpty() && ahead_.empty() && !frozen_; }
  // Nobody has given anything to its present version, and no leaver handed anything over.
  bool HoldsNothing() const { return now_.IsEmpty(); }
  // What leavers handed over to its present version, and is not in its sum.
  std::vector<Contribution> Partings() const;
  // At its present version, without the contributions that it holds.
  BlockSnapshot Save() const;
  // InvalidArgument when the sizes are not those of this block.
  absl::Status Load(const BlockSnapshot& snapshot);

  // ---- Mode asp: every member counts steps of its own ----

  // The member's contribution to `step` is part of the weights.
  void SetGiven(WorkerId worker, uint64_t step);
  // The member is sent the present version; with its weights kept, where delays are
  // compensated.
  enum class Keep { kVersion, kWeights };
  void SetShown(WorkerId worker, Keep keep);
  uint64_t AgeFor(WorkerId worker) const;
  std::span<const float> ShownTo(WorkerId worker) const;
  // After the last step that any member has given.
  uint64_t furthest() const { return furthest_; }

  // Those who wait for a version that is still to come; a later wish replaces an earlier one.
  const std::map<WorkerId, Wish>& wishes() const { return wishes_; }
  void Remember(WorkerId worker, const Wish& wish) { wishes_[worker] = wish; }
  // Removes and returns those that have come true.
  std::map<WorkerId, Wish> TakeFulfilled();

  // Forgets contributions and wishes of all who fail `keep`, except contributions that
  // count already: those of a frozen block, those in the accumulator, and parting ones.
  template <typename Keep>
  void Forget(const Keep& keep) {
    if (!frozen_) now_.Forget(keep);
    for (Collection& later : ahead_) later.Forget(keep);
    std::erase_if(wishes_, [&](const auto& wish) { return !keep(wish.first); });
    std::erase_if(paces_, [&](const auto& pace) { return !keep(pace.first); });
    std::erase_if(parted_, [&](const auto& parted) { return !keep(parted.first); });
  }

  void Freeze() { frozen_ = true; }
  // Whether the step changed the weights, changed nothing or state only, or has only
  // added to the sum of an update that is still to come.
  enum class Outcome { kUpdated, kUnchanged, kAccumulated };
  // The step is over: the next one begins, without contributions.
  void Advance(Outcome outcome);

 private:
  struct Pace {
    uint64_t next = 0;                // step
    uint64_t shown = 0;               // version
    std::vector<float> weights = {};  // that version's
  };

  struct Samples {
    double regular = 0;
    double parting = 0;

    void Add(const ShardApplied::Contributor& from) {
      (from.parting ? parting : regular) += from.samples;
    }
    double Divisor() const { return regular > 0 ? regular : parting; }
  };
  Samples Counted() const;
  void SetSeeded();
  bool HasContributions() const;
  absl::Status RestoreContributions(const StepRecord& record, const PushCodecs& codecs);
  void FindRateFactor();

  const ShardBlock spec_;
  const BlockMemory memory_;
  uint64_t version_ = 0;
  uint64_t updates_ = 0;  // steps that changed the weights
  bool seeded_ = false;
  bool frozen_ = false;
  std::optional<BegunState> begun_state_;
  Collection now_;                // of step `version_`
  std::deque<Collection> ahead_;  // of those that follow it
  Samples added_;                 // in the accumulator
  float rate_factor_ = 1;
  std::map<WorkerId, Wish> wishes_;
  std::map<WorkerId, Pace> paces_;
  uint64_t furthest_ = 0;  // of them, also of those who are gone
  // To which step those who leave handed over what they had kept, while they are members.
  std::map<WorkerId, uint64_t> parted_;
  std::span<float> written_;  // where the step's gradient is written, too
  Slice given_;               // the step's gradient, of a record
};

}  // namespace syncline
