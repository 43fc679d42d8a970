// With a quorum, a step consists of what the coordinator closed it with: the same
// contributors in all blocks of all shards. A shard reports who has given everything that
// it needs for a step, and gives back contributions that come too late or are incomplete.
#include <algorithm>
#include <utility>

#include "server/shard/shard_impl.h"

namespace syncline {

StepFacts Shard::Impl::FactsOf(const Block& block) const {
  StepFacts facts = block.FactsOf(ExpectedContributions(block.version()), *policy_);
  if (!mode_.has_quorum()) return facts;
  facts.whole = block.version() == collected_ ? whole_ : 0;
  // Without members, nobody closes the steps before the last checkpoint.
  const bool passes = members_.empty() && block.version() < passes_until_;
  facts.is_closed = passes || IsClosed(block.version());
  return facts;
}

PushFacts Shard::Impl::FactsOf(const MessageHeader& header, const Block& block) const {
  PushFacts facts = block.FactsOf(members_.at(header.rank), header.step);
  if (!mode_.has_quorum()) return facts;
  const WorkerId worker = {header.rank, header.incarnation};
  const auto counted = counted_.find(worker);
  const bool is_parting = (header.flags & kFlagParting) != 0;
  facts.is_counted = is_parting
                         ? block.HasParted(worker, header.step)
                         : counted != counted_.end() && counted->second == header.step;
  facts.is_complete = facts.is_complete || IsClosed(block.version());
  return facts;
}

// Returns the step that all trained blocks collect. It is the same for all, because a
// step is closed for all of them.
uint64_t Shard::Impl::CollectedStep() const {
  for (const auto& [id, block] : blocks_) {
    if (!stepper_->IsFrozen(block.spec().range.tensor)) return block.version();
  }
  return 0;
}

void Shard::Impl::NoteGiven(const MessageHeader& header) {
  if ((header.flags & kFlagParting) != 0) return;
  if (++given_[header.incarnation] == trained_) ++whole_;
}

void Shard::Impl::Collect(uint64_t step) {
  collected_ = step;
  given_.clear();
  whole_ = 0;
  reported_.reset();
}

void Shard::Impl::CountGivers() {
  const auto reported = reported_;
  Collect(CollectedStep());
  reported_ = reported;
  for (const auto& [id, block] : blocks_) {
    if (stepper_->IsFrozen(block.spec().range.tensor)) continue;
    for (const uint32_t incarnation : block.Givers()) {
      if (++given_[incarnation] == trained_) ++whole_;
    }
  }
  std::erase_if(counted_,
                [this](const auto& one) { return FindMember(one.first) == nullptr; });
}

std::vector<uint32_t> Shard::Impl::Whole() const {
  std::vector<uint32_t> whole;
  for (const auto& [incarnation, blocks] : given_) {
    if (blocks == trained_) whole.push_back(incarnation);
  }
  return whole;
}

void Shard::Impl::ReportHeld() {
  if (members_.empty() || trained_ == 0) return;
  const uint64_t step = CollectedStep();
  if (closed_ && step <= closed_->step) return;
  if (collected_ != step) Collect(step);
  const size_t enough = std::min<size_t>(mode_.quorum, ExpectedContributions(step));
  if (whole_ < enough) return;
  std::vector<uint32_t> whole = Whole();
  if (reported_ == whole) return;
  reported_ = whole;
  outputs_.push_back(ShardHeld{step, std::move(whole)});
}

void Shard::Impl::On(const ShardClosed& closed) {
  if (!mode_.has_quorum() || (closed_ && closed.step <= closed_->step)) return;
  closed_ = {closed.step, {closed.incarnations.begin(), closed.incarnations.end()}};
  for (const auto& [rank, member] : members_) {
    if (!closed_->incarnations.contains(member.incarnation)) continue;
    counted_[{rank, member.incarnation}] = closed.step;
  }
  for (auto& [id, block] : blocks_) {
    const bool is_trained = !stepper_->IsFrozen(block.spec().range.tensor);
    if (is_trained && block.version() == closed.step) LeaveOut(block);
  }
  for (auto& [id, block] : blocks_) StepIfComplete(block);
}

// Tells the senders before the new version is published that what was acknowledged is not
// in it.
void Shard::Impl::LeaveOut(Block& block) {
  for (const auto& [rank, incarnation] : block.LeaveOut(closed_->incarnations)) {
    const ShardMember* member = FindMember({rank, incarnation});
    if (member == nullptr) continue;
    MessageHeader header;
    header.job = options_.job;
    header.rank = rank;
    header.incarnation = incarnation;
    header.session_key = member->session_key;
    header.block = block.spec().block;
    header.step = block.version();
    Refuse(header, RefuseCode::kTooLate);
  }
}

}  // namespace syncline
