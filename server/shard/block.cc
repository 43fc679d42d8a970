#include "server/shard/block.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"

namespace syncline {

std::vector<ShardApplied::Contributor> Block::Contributors() const {
  std::vector<ShardApplied::Contributor> contributors;
  for (const Contribution& one : contributions_) {
    if (one.from.samples > 0) contributors.push_back(one.from);
  }
  contributors.insert(contributors.end(), departed_.begin(), departed_.end());
  std::ranges::stable_sort(contributors, {}, &ShardApplied::Contributor::rank);
  return contributors;
}

Block::Samples Block::Counted() const {
  Samples counted = added_;
  for (const Contribution& one : contributions_) {
    if (!one.view.tiles.empty()) counted.Add(one.from);
  }
  return counted;
}

void Block::SetWeights() {
  SortByRank();
  const double all = memory_.accumulator.empty() ? samples() : 1;
  for (Contribution& one : contributions_) {
    one.weight = one.from.samples == 0 ? 0 : static_cast<float>(one.from.samples / all);
  }
  FindRateFactor();
}

// A life that began later may not know yet how far the job's schedule is. What was kept
// for parting says nothing about rates.
void Block::FindRateFactor() {
  const ShardApplied::Contributor* oldest = nullptr;
  const auto consider = [&](const ShardApplied::Contributor& one) {
    if (one.samples == 0 || one.parting) return;
    if (oldest == nullptr || one.incarnation < oldest->incarnation) oldest = &one;
  };
  for (const Contribution& one : contributions_) consider(one.from);
  for (const ShardApplied::Contributor& one : departed_) consider(one);
  if (oldest != nullptr) rate_factor_ = oldest->rate_factor;
}

BlockSum Block::Sum() const {
  // Without samples the sum is zero, and stays so.
  const double all = samples();
  const bool is_mean = memory_.accumulator.empty() || all == 0;
  const float scale = is_mean ? 1.0f : static_cast<float>(1 / all);
  return {.range = spec_.range,
          .contributions = contributions_,
          .memory = memory_,
          .scale = scale};
}

void Block::MarkAdded() {
  added_ = Counted();
  for (Contribution& one : contributions_) {
    one.view.tiles.clear();
    one.payload = {};
  }
}

size_t Block::held_bytes() const {
  size_t bytes = 0;
  for (const Contribution& one : contributions_) bytes += one.payload.size;
  return bytes;
}

void Block::Seed(const BlockView& view) {
  SYNCLINE_CHECK(TakesSeed());
  for (const TileView& tile : view.tiles) {
    const auto weights = memory_.weights.subspan(tile.first_element, tile.elements);
    SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, weights).ok());
  }
  std::ranges::copy(memory_.weights.first(memory_.view.size()), memory_.view.begin());
  seeded_ = true;
}

PushState Block::StateOf(const ShardMember& member, uint64_t step) const {
  if (step < version_) return PushState::kCounted;
  if (step > version_) return PushState::kWrongStep;
  if (!seeded_) return PushState::kNotSeeded;
  if (member.first_step > step) return PushState::kWrongStep;
  if (Holds(member)) return PushState::kHeld;
  return frozen_ ? PushState::kWrongStep : PushState::kWanted;
}

void Block::Hold(Contribution contribution) {
  SYNCLINE_CHECK(!frozen_);
  const uint32_t rank = contribution.from.rank;
  if (rank >= slots_.size()) slots_.resize(rank + 1);
  slots_[rank] = uint64_t{contribution.from.incarnation} + 1;
  ++present_;
  contributions_.push_back(std::move(contribution));
}

// Those of one rank stay in the order in which they came.
void Block::SortByRank() {
  const auto by_rank = [](const Contribution& a, const Contribution& b) {
    return a.from.rank < b.from.rank;
  };
  const auto unsorted = contributions_.begin() + static_cast<ptrdiff_t>(in_order_);
  std::stable_sort(unsorted, contributions_.end(), by_rank);
  std::inplace_merge(contributions_.begin(), unsorted, contributions_.end(), by_rank);
  in_order_ = contributions_.size();
}

void Block::ClearSlot(const ShardApplied::Contributor& from) {
  uint64_t& slot = slots_[from.rank];
  if (slot == uint64_t{from.incarnation} + 1) slot = 0;
}

void Block::HoldNothing(const ShardMember& member) {
  Hold({.from = {.rank = member.rank, .incarnation = member.incarnation, .samples = 0}});
}

std::vector<WorkerId> Block::TakeFulfilled() {
  std::vector<WorkerId> fulfilled;
  if (!seeded_) return fulfilled;
  std::erase_if(wishes_, [&](const auto& wish) {
    if (wish.second > version_) return false;
    fulfilled.push_back(wish.first);
    return true;
  });
  return fulfilled;
}

BlockSnapshot Block::Save() const {
  SYNCLINE_CHECK(IsQuiet());
  BlockSnapshot snapshot = {
      .version = version_,
      .updates = updates_,
      .seeded = seeded_,
      .weights = {memory_.weights.begin(), memory_.weights.end()},
      .view = {memory_.view.begin(), memory_.view.end()},
      .accumulator = {memory_.accumulator.begin(), memory_.accumulator.end()},
      .accumulated_samples = added_.regular,
      .accumulated_parting_samples = added_.parting,
      .rate_factor = rate_factor_};
  for (const StoredSlot& slot : memory_.state) {
    const size_t bytes = StateBytes(slot.type, spec_.range.elements);
    snapshot.state.emplace_back(slot.memory, slot.memory + bytes);
  }
  return snapshot;
}

absl::Status Block::Load(const BlockSnapshot& snapshot) {
  bool fits = snapshot.weights.size() == memory_.weights.size() &&
              snapshot.view.size() == memory_.view.size() &&
              snapshot.accumulator.size() == memory_.accumulator.size() &&
              snapshot.state.size() == memory_.state.size();
  for (size_t i = 0; fits && i < snapshot.state.size(); ++i) {
    fits = snapshot.state[i].size() ==
           StateBytes(memory_.state[i].type, spec_.range.elements);
  }
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("the snapshot of block ", spec_.block,
                                                   " is of another block or optimizer"));
  }
  version_ = snapshot.version;
  updates_ = snapshot.updates;
  seeded_ = snapshot.seeded;
  added_ = {snapshot.accumulated_samples, snapshot.accumulated_parting_samples};
  rate_factor_ = snapshot.rate_factor;
  std::ranges::copy(snapshot.weights, memory_.weights.begin());
  std::ranges::copy(snapshot.view, memory_.view.begin());
  std::ranges::copy(snapshot.accumulator, memory_.accumulator.begin());
  for (size_t i = 0; i < snapshot.state.size(); ++i) {
    std::ranges::copy(snapshot.state[i], memory_.state[i].memory);
  }
  return absl::OkStatus();
}

void Block::Advance(Outcome outcome) {
  for (const Contribution& one : contributions_) slots_[one.from.rank] = 0;
  contributions_.clear();
  in_order_ = 0;
  present_ = 0;
  departed_.clear();
  frozen_ = false;
  ++version_;
  if (outcome == Outcome::kAccumulated) return;
  if (outcome == Outcome::kUpdated) ++updates_;
  added_ = {};
  std::ranges::fill(memory_.accumulator, 0.0f);
}

}  // namespace syncline
