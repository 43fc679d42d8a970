// A lane carries a stream of bytes to one peer and another one back. Messages lie in it
// one after the other, each padded to kLaneAlignment, so that elements never straddle what
// is handed out at once.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>

#include "comm/base/buffer.h"

namespace syncline::collective {

inline constexpr size_t kLaneAlignment = 64;

constexpr size_t LanePadded(size_t bytes) {
  return (bytes + kLaneAlignment - 1) / kLaneAlignment * kLaneAlignment;
}

class Lane {
 public:
  virtual ~Lane() = default;

  // Where the next bytes may be written; a multiple of kLaneAlignment, empty when the
  // lane is full. Valid until Commit.
  virtual MutableByteView Room() = 0;
  // Sends the first `bytes` of Room(). REQUIRES: a multiple of kLaneAlignment.
  virtual void Commit(size_t bytes) = 0;

  // What has arrived; a multiple of kLaneAlignment. Valid until Consume.
  virtual ByteView Arrived() = 0;
  // Forgets the first `bytes` of Arrived(). REQUIRES: a multiple of kLaneAlignment.
  virtual void Consume(size_t bytes) = 0;
};

}  // namespace syncline::collective
