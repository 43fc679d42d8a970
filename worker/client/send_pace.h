// How far a worker may run ahead of the others at one shard.
//
// A view is made when all members have contributed, and TCP shares a server's cable as it
// likes: where one worker's blocks run ahead of another's, the server has nothing to
// publish meanwhile, and must publish all at the end, when nothing comes in any more. A
// worker that is ahead therefore waits while views come, until few of its blocks are held
// without one: the others have the cable then, and all go through the blocks together.
// Blocks leave front layers first, so it is ahead by what it has pushed in front of the
// block that is next. Blocks behind that were pushed while backward came to them. Others
// computed sooner or later, had others of them ready, and push these when they come to
// them: counted, they kept everybody waiting for everybody (4 workers of a transformer on
// 1 Gbit/s: 1.4 s a step where 0.8 are needed).
//
// It is ahead only of somebody who pushes. When no view comes for as long as what is held
// would take to cross, others may be computing or gone, and the worker goes on: an idle
// cable helps nobody. That also keeps workers that push in different orders from waiting
// for each other.
//
// Pure; no thread safety.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace syncline {

class SendPace {
 public:
  struct Look {
    size_t held_bytes = 0;   // contributions that the shard has, and no view of them came
    size_t ahead_bytes = 0;  // of these, in front of what is next; `Countable` is enough
    size_t block_bytes = 0;  // of one of them, about
    size_t window_bytes = 0;      // that may be on their way to the shard
    double bytes_per_second = 0;  // to the shard; 0: unknown
  };

  // As far as the bytes that it is ahead make a difference.
  static size_t Countable(const Look& look);

  // Whether another block may leave now. After every event that may have changed what is
  // held, and some 100 times a second.
  bool MaySend(const Look& look, absl::Duration now);

 private:
  size_t held_bytes_ = 0;
  // When a view came, or nothing was held.
  absl::Duration moved_at_ = {};
};

}  // namespace syncline
