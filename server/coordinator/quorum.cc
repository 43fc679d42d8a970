#include "server/coordinator/quorum.h"

#include <algorithm>
#include <utility>

namespace syncline {

void QuorumWatch::Held(const StepHeld& held) {
  if (held.step < next_ || !shards_.contains(held.shard)) return;
  held_[held.shard] = held;
}

void QuorumWatch::Closed(uint64_t step) {
  next_ = std::max(next_, step + 1);
  std::erase_if(held_, [this](const auto& one) { return one.second.step < next_; });
  opened_at_.reset();
}

std::optional<QuorumWatch::Verdict> QuorumWatch::Look(
    absl::Duration now, const std::vector<MemberRecord>& members) {
  const auto opened_at = std::exchange(opened_at_, std::nullopt);
  if (held_.size() < shards_.size() || held_.empty()) return std::nullopt;
  const uint64_t step = held_.begin()->second.step;
  const auto is_of_step = [step](const auto& one) { return one.second.step == step; };
  if (!std::ranges::all_of(held_, is_of_step)) return std::nullopt;
  Verdict verdict = {.step = step};
  for (const MemberRecord& member : members) {
    if (member.first_step > step) continue;
    ++verdict.expected;
    const bool is_whole = std::ranges::all_of(held_, [&](const auto& one) {
      return std::ranges::binary_search(one.second.incarnations, member.incarnation);
    });
    if (is_whole) verdict.incarnations.push_back(member.incarnation);
  }
  std::ranges::sort(verdict.incarnations);
  const size_t whole = verdict.incarnations.size();
  if (whole < std::min(quorum_, verdict.expected)) return std::nullopt;
  opened_at_ = opened_at.value_or(now);
  if (whole < verdict.expected && now < *opened_at_ + grace_) return std::nullopt;
  return verdict;
}

}  // namespace syncline
