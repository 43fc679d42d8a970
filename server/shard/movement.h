// Counts what the members of a job do on this shard, to tell a member that stands still
// from one that is slow.
//
// A member moves when it contributes to a block, and when a view reaches it. Repetitions
// do not count. Between two steps of the others, a member therefore moves at most once
// per block and kind. All incarnations of a rank share a counter. Work that an earlier
// incarnation has done counts again for three incarnations only, counted from the last
// new contribution: a restarted worker is slow, one that dies over and over stands still.
//
// A block takes long on a slow link, so bytes that cross it count as well: each 64 KiB is
// one movement. Between two movements of the other kinds at most the bytes of a few
// blocks count, so that a member that only repeats messages stands still.
//
// Thread safety: none; the shard owns it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "server/shard/block.h"

namespace syncline {

class Movement {
 public:
  // `blocks` in ascending order.
  explicit Movement(std::vector<uint32_t> blocks) : blocks_(std::move(blocks)) {}

  // Counts a contribution. REQUIRES: `block` is one of the blocks, and this incarnation
  // has not made the contribution before.
  void Contributed(WorkerId worker, uint32_t block, uint64_t step);
  // Counts a view of that version that was sent to the last byte.
  void Delivered(WorkerId worker, uint32_t block, uint64_t version);
  // Counts an average or an array of state that was sent to the last byte. Until the next
  // new contribution of the rank, at most as many count as there are blocks.
  void Averaged(WorkerId worker);

  // Counts bytes that crossed the worker's connection, in either direction.
  void Crossed(WorkerId worker, uint64_t bytes);

  // Totals over all incarnations of a rank; they never decrease.
  uint64_t contributed(uint32_t rank) const;  // without what earlier incarnations gave
  uint64_t moved(uint32_t rank) const;

 private:
  struct Rank {
    uint32_t incarnation = 0;
    int lives = 0;  // incarnations since something new was contributed
    uint64_t contributed = 0;
    uint64_t moved = 0;
    uint64_t averages = 0;
    uint64_t crossed = 0;  // bytes since the last movement of another kind
    // By position in `blocks_`: the low 32 bits of 1 + the highest step or version; 0:
    // none.
    std::vector<uint32_t> steps = {};     // that any incarnation contributed to
    std::vector<uint32_t> versions = {};  // that this incarnation was sent
  };

  Rank& RankOf(WorkerId worker);
  // Counts one movement that is not of bytes.
  static void Move(Rank& rank);
  size_t IndexOf(uint32_t block) const;

  const std::vector<uint32_t> blocks_;
  std::map<uint32_t, Rank> ranks_;
};

}  // namespace syncline
