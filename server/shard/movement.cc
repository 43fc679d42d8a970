#include "server/shard/movement.h"

#include <algorithm>

#include "comm/base/limits.h"

namespace syncline {
namespace {

// How many incarnations are counted before a rank must contribute something new.
constexpr int kLivesCounted = 3;

// Large enough that 64-byte questions and their answers alone are no movement.
constexpr uint64_t kPartBytes = uint64_t{64} << 10;
// One block on its way up and one on its way down, each repeated once after its
// connection was lost.
constexpr uint64_t kMaxCrossed = 4 * uint64_t{kMaxMessagePayloadBytes};

// Raises `highest` to `to` + 1 and returns whether that is new. The numbers wrap around:
// a number less than half the range ahead is newer.
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

void Movement::Move(Rank& rank) {
  ++rank.moved;
  rank.crossed = 0;
}

void Movement::Crossed(WorkerId worker, uint64_t bytes) {
  if (bytes == 0) return;
  const auto known = ranks_.find(worker.first);
  if (known != ranks_.end() && worker.second < known->second.incarnation) return;
  Rank& rank = RankOf(worker);
  if (rank.lives > kLivesCounted) return;
  const uint64_t before = rank.crossed;
  rank.crossed = std::min(before + std::min(bytes, kMaxCrossed), kMaxCrossed);
  rank.moved += rank.crossed / kPartBytes - before / kPartBytes;
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
  Move(rank);
}

void Movement::Delivered(WorkerId worker, uint32_t block, uint64_t version) {
  const auto known = ranks_.find(worker.first);
  if (known != ranks_.end() && worker.second < known->second.incarnation) return;
  Rank& rank = RankOf(worker);
  if (rank.lives > kLivesCounted) return;
  if (Raise(rank.versions[IndexOf(block)], version)) Move(rank);
}

void Movement::Averaged(WorkerId worker) {
  Rank& rank = RankOf(worker);
  if (rank.averages >= blocks_.size() || rank.lives > kLivesCounted) return;
  ++rank.averages;
  Move(rank);
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
