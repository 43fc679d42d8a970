// The lane between two ranks of different hosts. Committed bytes are sent as messages.
// Arrived bytes stay in the buffers where they landed until they are consumed.
//
// A sender may be at most kLaneWindow ahead of what its peer has consumed. This bounds
// the memory of both sides, and a peer that computes for a long time is not flooded.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/status/status.h"
#include "comm/base/buffer.h"
#include "comm/collective/group/lane.h"

namespace syncline::collective {

// About what a network of 10 Gbit/s carries in 3 ms.
inline constexpr size_t kLaneWindow = size_t{4} << 20;

class TcpLane final : public Lane {
 public:
  // `pool` must outlive the lane. Sets `*touched` when there is something to send.
  TcpLane(BufferPool& pool, bool* touched) : pool_(pool), touched_(touched) {}

  MutableByteView Room() override;
  void Commit(size_t bytes) override;
  ByteView Arrived() override;
  void Consume(size_t bytes) override;

  // ---- For the wire ----

  // Returns the bytes committed since the last call; may be empty.
  Payload TakeUnsent();
  // Returns the total of consumed bytes if the peer should be told now.
  std::optional<uint64_t> TakeConsumed();
  // Records the peer's total of consumed bytes. InvalidArgument when that is impossible.
  absl::Status OnConsumed(uint64_t bytes);
  // Fails with InvalidArgument unless the peer may send this many bytes now.
  absl::Status CheckArrival(size_t bytes) const;
  void Land(Buffer bytes);

 private:
  void PutAside();

  BufferPool& pool_;
  bool* const touched_;

  Buffer chunk_;           // being filled
  size_t filled_ = 0;      // bytes of chunk_
  size_t sent_ = 0;        // bytes of chunk_
  Payload unsent_;         // from earlier chunks
  uint64_t written_ = 0;   // total committed
  uint64_t consumed_ = 0;  // total consumed by the peer

  std::deque<Buffer> arrived_;
  size_t read_here_ = 0;   // consumed bytes of the first of arrived_
  uint64_t received_ = 0;  // total
  uint64_t read_ = 0;      // total consumed here
  uint64_t told_ = 0;      // part of read_ that the peer was told
};

}  // namespace syncline::collective
