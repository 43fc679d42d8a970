// A block and its state: seeded, collecting, frozen while its step is decided, stepped.
// It knows what a member may do to it at its present version. The shard knows who the
// members are.
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

// An incarnation of a worker: (rank, incarnation).
using WorkerId = std::pair<uint32_t, uint32_t>;

// A member's request for a version of a block.
struct Wish {
  uint64_t version = 0;
  std::optional<uint64_t> held = std::nullopt;  // ViewDigest of the member's own values
};

// What members gave to one step that is not over yet.
struct Collection {
  std::vector<Contribution> contributions = {};
  // Contributions at the front that are in rank order. The others came since the last
  // sort.
  size_t in_order = 0;
  size_t present = 0;  // held contributions of present members
  // By rank: 1 + the incarnation whose contribution came last; 0: none. Without it, each
  // push would search all contributions, which is quadratic in the number of workers.
  std::vector<uint64_t> slots = {};
  // Contributors that are no longer members, but whose contribution counts.
  std::vector<ShardApplied::Contributor> departed = {};

  bool Holds(WorkerId worker) const {
    return worker.first < slots.size() &&
           slots[worker.first] == uint64_t{worker.second} + 1;
  }
  void Hold(Contribution contribution);
  // Keeps several contributions of one rank in the order in which they came.
  void SortByRank();
  bool IsEmpty() const { return contributions.empty() && departed.empty(); }
  // Removes the contributions of all other incarnations, except those that leaving
  // workers handed over. Returns their senders.
  std::vector<WorkerId> LeaveOut(const std::set<uint32_t>& incarnations);
  void Clear();

  // Removes the contributions of all workers that fail `keep`. Parting ones, and those
  // that are in the accumulator already, still count.
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

// The codecs that pushes of a tensor may use.
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
  // Returns every contributor to this step that counts, in rank order.
  std::vector<ShardApplied::Contributor> Contributors() const;
  // Returns how many contributions of present members are held.
  size_t present() const { return now_.present; }
  // Returns the facts for the step that it collects; `expected` members take part in it.
  StepFacts FactsOf(size_t expected, const SyncPolicy& policy) const;
  // Returns the number of samples in the sum of this update: those that are held, and
  // those that were added before. Samples of parting contributions count only if there
  // are no others.
  double samples() const { return Counted().Divisor(); }
  // Returns the sum that its step computes. REQUIRES: SetWeights was called.
  BlockSum Sum() const;

  // ---- Records ----

  // Returns the record of the step under way, without its digest. `sum`: what the record
  // holds if the contributions are larger than it or no longer there; the caller then
  // writes it. REQUIRES: SetWeights was called.
  StepRecord Record(StepRecord::Payload sum, BufferPool& pool) const;
  // Makes the step also write its gradient to `sum`.
  void WriteSum(std::span<float> sum) { written_ = sum; }
  // Replaces the contributions to its step by those of a record. REQUIRES: the record is
  // of this block and version. Fails with InvalidArgument if the record is malformed;
  // weights and state do not change then.
  absl::Status Restore(const StepRecord& record, const PushCodecs& codecs);
  // Holds a parting contribution to its present version. The record of the step replaces
  // it.
  absl::Status RestoreParting(const PartingRecord& record, const Codec* codec);
  absl::Status RestoreSeed(const SeedRecord& record);
  uint32_t Digest() const;
  size_t held_bytes() const;

  BlockLabel Label(uint64_t epoch) const { return {spec_.range, version_, epoch}; }

  // Returns the first step that this block has neither completed nor promised to
  // complete.
  uint64_t next_step() const { return version_ + (frozen_ ? 1 : 0); }

  // The first values stay: a worker may hold them already, and deltas are added to them.
  bool TakesSeed() const { return !seeded_; }
  // REQUIRES: TakesSeed(), and `view` is of exactly this block.
  void Seed(const BlockView& view);

  // The optimizer state that its seeder has sent so far.
  struct BegunState {
    WorkerId from = {};
    uint64_t updates = 0;
    uint32_t arrays = 0;
  };
  const std::optional<BegunState>& begun_state() const { return begun_state_; }
  void SetBegunState(const BegunState& begun) { begun_state_ = begun; }
  // BeginAfter keeps the state that has come and sets the number of updates behind it.
  // BeginWithoutState sets the state to zeros. REQUIRES: TakesSeed().
  void BeginAfter(uint64_t updates) { updates_ = updates; }
  void BeginWithoutState();

  // Returns whether it holds this member's contribution to its present version.
  bool Holds(const ShardMember& member) const {
    return now_.Holds({member.rank, member.incarnation});
  }
  PushFacts FactsOf(const ShardMember& member, uint64_t step) const;
  // Returns the incarnations that gave to its present version, without leaving workers.
  // Used with a quorum.
  std::vector<uint32_t> Givers() const;
  // Removes what other incarnations gave to its present version: see Collection.
  std::vector<WorkerId> LeaveOut(const std::set<uint32_t>& incarnations) {
    return now_.LeaveOut(incarnations);
  }
  // Returns whether this incarnation left and handed over a contribution to `step`.
  bool HasParted(WorkerId worker, uint64_t step) const {
    const auto parted = parted_.find(worker);
    return parted != parted_.end() && parted->second == step;
  }
  // Holds a contribution to its present version or, if the policy lets members run ahead,
  // to a later step. REQUIRES: SyncPolicy::Judge(FactsOf(...)) == kTake.
  void Hold(uint64_t step, Contribution contribution);

  // Sorts the contributions by rank and sets the weight of each in the sum: its share of
  // the samples. If the sum is kept between steps, their total is not known yet, and the
  // weight is its number of samples. Also finds the rate factor.
  void SetWeights();
  // Returns the factor of the learning rate: that of the contributor with the lowest
  // incarnation, whatever came first. If all members skip, it is that of the step before.
  // REQUIRES: SetWeights was called.
  float rate_factor() const { return rate_factor_; }
  // Notes that all held contributions were added to the accumulator.
  void MarkAdded();

  // Returns whether it is between two steps: it holds nothing and waits for no decision.
  bool IsQuiet() const { return now_.IsEmpty() && ahead_.empty() && !frozen_; }
  // Returns whether nobody, leaving workers included, has given to its present version.
  bool HoldsNothing() const { return now_.IsEmpty(); }
  // Returns what leaving workers handed over to its present version and is not in its
  // sum.
  std::vector<Contribution> Partings() const;
  // Returns its state at its present version, without the contributions that it holds.
  BlockSnapshot Save() const;
  // Fails with InvalidArgument if the sizes are not those of this block.
  absl::Status Load(const BlockSnapshot& snapshot);

  // ---- Mode asp: every member counts steps of its own ----

  // Notes that the member's contribution to `step` is part of the weights.
  void SetGiven(WorkerId worker, uint64_t step);
  // Notes that the member is sent the present version. kWeights also keeps a copy of its
  // weights, for delay compensation.
  enum class Keep { kVersion, kWeights };
  void SetShown(WorkerId worker, Keep keep);
  // Returns the number of versions since the one that the member was sent last. 0: the
  // current one, or none.
  uint64_t AgeFor(WorkerId worker) const;
  // Returns the weights that the member was sent last; empty if they are not kept.
  std::span<const float> ShownTo(WorkerId worker) const;
  // The step after the last one that any member, present or not, has given.
  uint64_t furthest() const { return furthest_; }

  // Members that wait for a version that is still to come. A later wish replaces an
  // earlier one.
  const std::map<WorkerId, Wish>& wishes() const { return wishes_; }
  void Remember(WorkerId worker, const Wish& wish) { wishes_[worker] = wish; }
  // Removes and returns the wishes whose version has come.
  std::map<WorkerId, Wish> TakeFulfilled();

  // Forgets contributions and wishes of all workers that fail `keep`. Contributions that
  // count already stay: those of a frozen block, those in the accumulator, and parting
  // ones.
  template <typename Keep>
  void Forget(const Keep& keep) {
    if (!frozen_) now_.Forget(keep);
    for (Collection& later : ahead_) later.Forget(keep);
    std::erase_if(wishes_, [&](const auto& wish) { return !keep(wish.first); });
    std::erase_if(paces_, [&](const auto& pace) { return !keep(pace.first); });
    std::erase_if(parted_, [&](const auto& parted) { return !keep(parted.first); });
  }

  void Freeze() { frozen_ = true; }
  // What a step did: changed the weights; changed nothing, or optimizer state only; or
  // only added to the sum of a later update.
  enum class Outcome { kUpdated, kUnchanged, kAccumulated };
  // Ends the step. The next one begins without contributions, except those that came
  // ahead.
  void Advance(Outcome outcome);

 private:
  struct Pace {
    // Step that the member contributes to next.
    uint64_t next = 0;
    // Version that the member was sent last.
    uint64_t shown = 0;
    std::vector<float> weights = {};  // weights of version `shown`
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
  Collection now_;                // contributions to step `version_`
  std::deque<Collection> ahead_;  // contributions to the steps after it
  Samples added_;                 // samples in the accumulator
  float rate_factor_ = 1;
  std::map<WorkerId, Wish> wishes_;
  std::map<WorkerId, Pace> paces_;
  // The largest Pace::next ever, of members that have left, too.
  uint64_t furthest_ = 0;
  // By worker: the step to which it handed over a contribution when it left. Forgotten
  // once the worker is no longer a member.
  std::map<WorkerId, uint64_t> parted_;
  // Where the step also writes its gradient; empty: nowhere.
  std::span<float> written_;
  Slice given_;  // the step's gradient, out of a record
};

}  // namespace syncline
