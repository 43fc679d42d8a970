#include "server/shard/block.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"

namespace syncline {

void Collection::Hold(Contribution contribution) {
  const uint32_t rank = contribution.from.rank;
  if (rank >= slots.size()) slots.resize(rank + 1);
  slots[rank] = uint64_t{contribution.from.incarnation} + 1;
  ++present;
  contributions.push_back(std::move(contribution));
}

void Collection::SortByRank() {
  const auto by_rank = [](const Contribution& a, const Contribution& b) {
    return a.from.rank < b.from.rank;
  };
  const auto unsorted = contributions.begin() + static_cast<ptrdiff_t>(in_order);
  std::stable_sort(unsorted, contributions.end(), by_rank);
  std::inplace_merge(contributions.begin(), unsorted, contributions.end(), by_rank);
  in_order = contributions.size();
}

void Collection::ClearSlot(const ShardApplied::Contributor& from) {
  uint64_t& slot = slots[from.rank];
  if (slot == uint64_t{from.incarnation} + 1) slot = 0;
}

std::vector<WorkerId> Collection::LeaveOut(const std::set<uint32_t>& incarnations) {
  std::vector<WorkerId> left_out;
  SortByRank();
  std::erase_if(contributions, [&](const Contribution& one) {
    if (one.from.parting || incarnations.contains(one.from.incarnation)) return false;
    left_out.emplace_back(one.from.rank, one.from.incarnation);
    ClearSlot(one.from);
    --present;
    return true;
  });
  in_order = contributions.size();
  return left_out;
}

// Keeps its memory for the next step.
void Collection::Clear() {
  for (const Contribution& one : contributions) slots[one.from.rank] = 0;
  contributions.clear();
  in_order = 0;
  present = 0;
  departed.clear();
}

std::vector<ShardApplied::Contributor> Block::Contributors() const {
  std::vector<ShardApplied::Contributor> contributors;
  for (const Contribution& one : now_.contributions) {
    if (one.from.samples > 0) contributors.push_back(one.from);
  }
  contributors.insert(contributors.end(), now_.departed.begin(), now_.departed.end());
  std::ranges::stable_sort(contributors, {}, &ShardApplied::Contributor::rank);
  return contributors;
}

Block::Samples Block::Counted() const {
  Samples counted = added_;
  for (const Contribution& one : now_.contributions) {
    if (!one.view.tiles.empty()) counted.Add(one.from);
  }
  return counted;
}

void Block::SetWeights() {
  now_.SortByRank();
  const double all = memory_.accumulator.empty() ? samples() : 1;
  for (Contribution& one : now_.contributions) {
    one.weight = one.from.samples == 0 ? 0 : static_cast<float>(one.from.samples / all);
  }
  FindRateFactor();
}

// Takes the factor of the lowest incarnation: one that began later may not know yet how
// far the job's schedule is. Parting contributions say nothing about rates.
void Block::FindRateFactor() {
  const ShardApplied::Contributor* oldest = nullptr;
  const auto consider = [&](const ShardApplied::Contributor& one) {
    if (one.samples == 0 || one.parting) return;
    if (oldest == nullptr || one.incarnation < oldest->incarnation) oldest = &one;
  };
  for (const Contribution& one : now_.contributions) consider(one.from);
  for (const ShardApplied::Contributor& one : now_.departed) consider(one);
  if (oldest != nullptr) rate_factor_ = oldest->rate_factor;
}

BlockSum Block::Sum() const {
  // Without samples, the sum is zero and stays zero.
  const double all = samples();
  const bool is_mean = memory_.accumulator.empty() || all == 0;
  const float scale = is_mean ? 1.0f : static_cast<float>(1 / all);
  return {.range = spec_.range,
          .contributions = now_.contributions,
          .memory = memory_,
          .scale = scale,
          .written = written_,
          .given = {reinterpret_cast<const float*>(given_.data),
                    given_.size / sizeof(float)}};
}

void Block::MarkAdded() {
  added_ = Counted();
  for (Contribution& one : now_.contributions) {
    one.view.tiles.clear();
    one.payload = {};
  }
}

size_t Block::held_bytes() const {
  size_t bytes = 0;
  for (const Contribution& one : now_.contributions) bytes += one.payload.size();
  for (const Collection& later : ahead_) {
    for (const Contribution& one : later.contributions) bytes += one.payload.size();
  }
  for (const auto& [worker, pace] : paces_) bytes += pace.weights.size() * sizeof(float);
  return bytes;
}

void Block::Seed(const BlockView& view) {
  SYNCLINE_CHECK(TakesSeed());
  for (const TileView& tile : view.tiles) {
    const auto weights = memory_.weights.subspan(tile.first_element, tile.elements);
    SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, weights).ok());
  }
  SetSeeded();
}

void Block::BeginWithoutState() {
  updates_ = 0;
  for (const StoredSlot& slot : memory_.state) {
    std::fill_n(slot.memory, StateBytes(slot.type, spec_.range.elements), std::byte{0});
  }
}

void Block::SetSeeded() {
  std::ranges::copy(memory_.weights.first(memory_.view.size()), memory_.view.begin());
  seeded_ = true;
}

PushFacts Block::FactsOf(const ShardMember& member, uint64_t step) const {
  PushFacts facts = {.step = step,
                     .version = version_,
                     .first_step = member.first_step,
                     .next_step = member.first_step,
                     .is_complete = frozen_};
  const WorkerId worker = {member.rank, member.incarnation};
  if (const auto pace = paces_.find(worker); pace != paces_.end()) {
    facts.next_step = std::max(facts.next_step, pace->second.next);
  }
  if (step == version_) facts.is_held = now_.Holds(worker);
  if (step > version_ && step - version_ <= ahead_.size()) {
    facts.is_held = ahead_[step - version_ - 1].Holds(worker);
  }
  return facts;
}

StepFacts Block::FactsOf(size_t expected, const SyncPolicy& policy) const {
  const uint64_t most = policy.most_ahead();
  const size_t at_limit = most == 0              ? now_.present
                          : ahead_.size() < most ? 0
                                                 : ahead_[most - 1].present;
  return {.expected = expected, .present = now_.present, .is_limit = at_limit > 0};
}

std::vector<uint32_t> Block::Givers() const {
  std::vector<uint32_t> givers;
  for (const Contribution& one : now_.contributions) {
    if (!one.from.parting) givers.push_back(one.from.incarnation);
  }
  return givers;
}

void Block::Hold(uint64_t step, Contribution contribution) {
  if (contribution.from.parting) {
    parted_[{contribution.from.rank, contribution.from.incarnation}] = step;
  }
  if (step == version_) {
    SYNCLINE_CHECK(!frozen_);
    return now_.Hold(std::move(contribution));
  }
  const uint64_t index = step - version_ - 1;
  SYNCLINE_CHECK(index < kMaxStaleness);
  if (index >= ahead_.size()) ahead_.resize(index + 1);
  ahead_[index].Hold(std::move(contribution));
}

void Block::SetGiven(WorkerId worker, uint64_t step) {
  paces_[worker].next = step + 1;
  furthest_ = std::max(furthest_, step + 1);
}

void Block::SetShown(WorkerId worker, Keep keep) {
  Pace& pace = paces_[worker];
  pace.shown = version_;
  if (keep == Keep::kVersion) return;
  pace.weights.assign(memory_.weights.begin(), memory_.weights.end());
}

uint64_t Block::AgeFor(WorkerId worker) const {
  const auto pace = paces_.find(worker);
  return pace == paces_.end() ? 0 : version_ - pace->second.shown;
}

std::span<const float> Block::ShownTo(WorkerId worker) const {
  const auto pace = paces_.find(worker);
  if (pace == paces_.end()) return {};
  return pace->second.weights;
}

std::map<WorkerId, Wish> Block::TakeFulfilled() {
  std::map<WorkerId, Wish> fulfilled;
  if (!seeded_) return fulfilled;
  std::erase_if(wishes_, [&](const auto& wish) {
    if (wish.second.version > version_) return false;
    fulfilled.insert(wish);
    return true;
  });
  return fulfilled;
}

std::vector<Contribution> Block::Partings() const {
  std::vector<Contribution> partings;
  std::ranges::copy_if(now_.contributions, std::back_inserter(partings),
                       [](const Contribution& one) {
                         return one.from.parting && !one.view.tiles.empty();
                       });
  return partings;
}

BlockSnapshot Block::Save() const {
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
    return absl::InvalidArgumentError(
        absl::StrCat("the snapshot of block ", spec_.block,
                     " does not fit the block or its optimizer"));
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
  written_ = {};
  given_ = {};
  if (ahead_.empty()) {
    now_.Clear();
  } else {
    now_ = std::move(ahead_.front());
    ahead_.pop_front();
  }
  frozen_ = false;
  ++version_;
  if (outcome == Outcome::kAccumulated) return;
  if (outcome == Outcome::kUpdated) ++updates_;
  added_ = {};
  std::ranges::fill(memory_.accumulator, 0.0f);
}

}  // namespace syncline
