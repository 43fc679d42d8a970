// A lane carries a stream of bytes to one peer, and another stream back. Messages follow
// each other, each padded to kLaneAlignment, so that elements never straddle the views
// that Room() and Arrived() return.
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

  // Returns free space for the next bytes, a multiple of kLaneAlignment; empty when the
  // lane is full. Valid until Commit.
  virtual MutableByteView Room() = 0;
  // Sends the first `bytes` of Room(). REQUIRES: a multiple of kLaneAlignment.
  virtual void Commit(size_t bytes) = 0;

  // Returns the bytes that have arrived, a multiple of kLaneAlignment. Valid until
  // Consume.
  virtual ByteView Arrived() = 0;
  // Drops the first `bytes` of Arrived(). REQUIRES: a multiple of kLaneAlignment.
  virtual void Consume(size_t bytes) = 0;
};

}  // namespace syncline::collective
