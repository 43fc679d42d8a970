// Limits how far a worker may run ahead of the other workers at one shard.
//
// A server publishes a view once all members have contributed. TCP does not share a
// server's cable fairly. If one worker's blocks run ahead of another's, the server has
// nothing to publish meanwhile, and must publish everything at the end, when nothing
// arrives any more. So a worker that is ahead waits, as long as views arrive, until the
// shard holds few of its blocks without a view. The other workers get the cable, and all
// workers go through the blocks together.
//
// Blocks are sent front layers first. A worker is ahead by the bytes that it has pushed
// in front of the block that is next. Blocks behind that one were pushed when backward
// reached them, and they do not count. Other workers compute earlier or later, have other
// blocks ready, and push those when they reach them. When they did count, all workers
// waited for each other (4 workers of a transformer on 1 Gbit/s: 1.4 s per step instead
// of 0.8 s).
//
// The limit helps only while other workers push. If no view arrives for as long as the
// held bytes would need on the cable, the others may be computing or gone, and the worker
// continues. This also keeps workers that push in different orders from waiting for each
// other.
//
// Thread safety: none. The class is pure: times are arguments.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace syncline {

class SendPace {
 public:
  struct Look {
    // Bytes of contributions that the shard holds, and whose views have not arrived.
    size_t held_bytes = 0;
    // The part of held_bytes in front of the next block. It may be cut to Countable().
    size_t ahead_bytes = 0;
    size_t block_bytes = 0;       // approximate size of one contribution
    size_t window_bytes = 0;      // limit of the bytes under way to the shard
    double bytes_per_second = 0;  // speed to the shard; 0: unknown
  };

  // Returns the largest value of ahead_bytes that matters.
  static size_t Countable(const Look& look);

  // Returns whether another block may be sent now. Call it after every event that may
  // have changed the held bytes, and about 100 times a second.
  bool MaySend(const Look& look, absl::Duration now);

 private:
  size_t held_bytes_ = 0;
  // The last time at which a view arrived or nothing was held.
  absl::Duration moved_at_ = {};
};

}  // namespace syncline
