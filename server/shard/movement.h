// What the members of a job have done here, counted so that somebody who stands still is
// told from somebody who is slow.
//
// A member moves when it contributes to a block, and when a view reaches it. Repetitions
// do not count, so between two steps of the others nobody moves more often than there are
// blocks. Several lives of one rank share a counter. What an earlier life has done already
// counts again for the first three lives only: a worker that was restarted is slow, one
// that dies over and over stands still.
//
// On a slow link a block takes long, so bytes that cross it count, too: 64 KiB as one
// movement, and at most the bytes of a few blocks between two movements of the other kinds,
// so that who only repeats itself stands still.
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

  // REQUIRES: the block is one of them, and the contribution no repetition within this
  // life.
  void Contributed(WorkerId worker, uint32_t block, uint64_t step);
  // A view of that version has been sent, to the last byte.
  void Delivered(WorkerId worker, uint32_t block, uint64_t version);
  // The same for an average. As many count as there are blocks, until the next
  // contribution.
  void Averaged(WorkerId worker);

  // So many bytes crossed the worker's connection, in either direction.
  void Crossed(WorkerId worker, uint64_t bytes);

  // Of all lives of a rank; they only grow.
  uint64_t contributed(uint32_t rank) const;  // blocks that no earlier life had given
  uint64_t moved(uint32_t rank) const;

 private:
  struct Rank {
    uint32_t incarnation = 0;
    int lives = 0;  // since something new was contributed
    uint64_t contributed = 0;
    uint64_t moved = 0;
    uint64_t averages = 0;
    uint64_t crossed = 0;  // bytes since a block moved as a whole
    // By position in `blocks_`: the low half of 1 + the highest step or version; 0: none.
    std::vector<uint32_t> steps = {};     // that any life contributed to
    std::vector<uint32_t> versions = {};  // that this life was sent
  };

  Rank& RankOf(WorkerId worker);
  // Something moved as a whole.
  static void Move(Rank& rank);
  size_t IndexOf(uint32_t block) const;

  const std::vector<uint32_t> blocks_;
  std::map<uint32_t, Rank> ranks_;
};

}  // namespace syncline
