#include "server/shard/movement.h"

#include <algorithm>

namespace syncline {
namespace {

constexpr int kLivesCounted = 3;

// Steps grow, so what lies less than half the range ahead is newer.
bool Raise(uint32_t& highest, uint64_t to) {
  const auto next = static_cast<uint32_t>(to + 1);
  if (highest != 0 && static_cast<int32_t>(next - highest) <= 0) return false;
  highest = next;
  return true;
}

}  // namespace

size_t Movement::IndexOf(uint32_t block) const {
  return static_cast<size_t>(std::ranges::lower_bound(blocks_, block) - blocks_.begin());
}

Movement::Rank& Movement::RankOf(WorkerId worker) {
  Rank& rank = ranks_[worker.first];
  if (rank.incarnation == worker.second && rank.lives > 0) return rank;
  rank.incarnation = worker.second;
  ++rank.lives;
  rank.steps.resize(blocks_.size());
  rank.versions.assign(blocks_.size(), 0);
  return rank;
}

void Movement::Contributed(WorkerId worker, uint32_t block, uint64_t step) {
  Rank& rank = RankOf(worker);
  if (Raise(rank.steps[IndexOf(block)], step)) {
    ++rank.contributed;
    rank.lives = 1;
    rank.averages = 0;
  } else if (rank.lives > kLivesCounted) {
    return;
  }
  ++rank.moved;
}

void Movement::Delivered(WorkerId worker, uint32_t block, uint64_t version) {
  const auto known = ranks_.find(worker.first);
  if (known != ranks_.end() && worker.second < known->second.incarnation) return;
  Rank& rank = RankOf(worker);
  if (rank.lives > kLivesCounted) return;
  if (Raise(rank.versions[IndexOf(block)], version)) ++rank.moved;
}

void Movement::Averaged(WorkerId worker) {
  Rank& rank = RankOf(worker);
  if (rank.averages >= blocks_.size() || rank.lives > kLivesCounted) return;
  ++rank.averages;
  ++rank.moved;
}

uint64_t Movement::contributed(uint32_t rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? 0 : found->second.contributed;
}

uint64_t Movement::moved(uint32_t rank) const {
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? 0 : found->second.moved;
}

}  // namespace syncline
