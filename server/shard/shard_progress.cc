// What a shard knows of its members' progress, for heartbeats.
#include <algorithm>
#include <limits>

#include "server/shard/shard_impl.h"

namespace syncline {

// Returns whether a member waits for this block. A member that has moved to a later
// version holds nothing at the limit, but waits. A member that joins later cannot
// contribute to this version, and waits for it to pass in any mode.
bool Shard::Impl::IsWaitedFor(const Block& block) const {
  if (!block.seeded() || block.frozen()) return false;
  StepFacts facts = FactsOf(block);
  bool is_joined = false;
  for (const auto& [worker, wish] : block.wishes()) {
    const ShardMember* member = FindMember(worker);
    if (member == nullptr || wish.version <= block.version()) continue;
    facts.is_asked = true;
    if (member->first_step > block.version()) is_joined = true;
  }
  return is_joined || policy_->HoldsUp(facts);
}

void Shard::Impl::AddProgress(const Block& block, ShardProgress& progress) const {
  if (!block.seeded()) ++progress.unseeded;
  if (block.frozen()) ++progress.undecided;
  const bool is_waited_for = IsWaitedFor(block);
  if (is_waited_for) ++progress.waited_for;
  if (!is_waited_for && block.IsQuiet() && block.wishes().empty()) return;
  auto member = progress.members.begin();
  for (const auto& [rank, one] : members_) {
    const bool holds = block.Holds(one);
    if (holds || block.wishes().contains({rank, one.incarnation})) ++member->waits;
    if (is_waited_for && !holds && one.first_step <= block.version()) ++member->owed;
    ++member;
  }
}

ShardProgress Shard::Impl::Progress() const {
  ShardProgress progress{.completed = completed_};
  progress.members.reserve(members_.size());
  for (const auto& [rank, member] : members_) {
    progress.members.push_back({.rank = rank,
                                .contributed = movement_.contributed(rank),
                                .moved = movement_.moved(rank)});
  }
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  uint64_t highest = 0;
  for (const auto& [id, block] : blocks_) {
    AddProgress(block, progress);
    if (stepper_->IsFrozen(block.spec().range.tensor)) continue;
    ++progress.trained;
    highest = std::max(highest, block.version());
    if (block.frozen() || IsWaitedFor(block)) lowest = std::min(lowest, block.version());
  }
  progress.step = std::min(lowest, highest);
  return progress;
}

void Shard::Impl::Delivered(const MessageHeader& header) {
  const WorkerId worker = {header.rank, header.incarnation};
  if (FindMember(worker) == nullptr || !blocks_.contains(header.block)) return;
  const auto kind = static_cast<MessageKind>(header.kind);
  if (kind == MessageKind::kAverage || kind == MessageKind::kState) {
    movement_.Averaged(worker);
  }
  if (header.kind == static_cast<uint16_t>(MessageKind::kPublish)) {
    movement_.Delivered(worker, header.block, header.step);
  }
}

void Shard::Impl::Crossed(WorkerId worker, uint64_t bytes) {
  if (FindMember(worker) != nullptr) movement_.Crossed(worker, bytes);
}

ShardProgress Shard::Progress() const { return impl_->Progress(); }
void Shard::Delivered(const MessageHeader& header) { impl_->Delivered(header); }
void Shard::Crossed(uint32_t rank, uint32_t incarnation, uint64_t bytes) {
  impl_->Crossed({rank, incarnation}, bytes);
}

}  // namespace syncline
