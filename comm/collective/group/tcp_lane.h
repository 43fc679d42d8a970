// One direction each way between two ranks of different hosts: what is committed leaves in
// messages, what arrives rests in the buffers it landed in until it is consumed.
//
// A sender may be kLaneWindow ahead of what its peer has consumed, so that neither side
// ever holds more, and a peer that computes for long is not flooded.
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

// What a network of 10 Gbit/s holds in 3 ms.
inline constexpr size_t kLaneWindow = size_t{4} << 20;

class TcpLane final : public Lane {
 public:
  // `pool` outlives the lane. Sets `*touched` when there is something to be sent.
  TcpLane(BufferPool& pool, bool* touched) : pool_(pool), touched_(touched) {}

  MutableByteView Room() override;
  void Commit(size_t bytes) override;
  ByteView Arrived() override;
  void Consume(size_t bytes) override;

  // ---- For the wire ----

  // What was committed since; empty: nothing.
  Payload TakeUnsent();
  // How much this side has consumed in all, when it is time to say so.
  std::optional<uint64_t> TakeConsumed();
  // The peer has consumed so much in all. InvalidArgument when it cannot have.
  absl::Status OnConsumed(uint64_t bytes);
  // InvalidArgument unless the peer may send so many bytes now.
  absl::Status CheckArrival(size_t bytes) const;
  void Land(Buffer bytes);

 private:
  void PutAside();

  BufferPool& pool_;
  bool* const touched_;

  Buffer chunk_;           // being filled
  size_t filled_ = 0;      // of it
  size_t sent_ = 0;        // of it
  Payload unsent_;         // of earlier chunks
  uint64_t written_ = 0;   // committed, in all
  uint64_t consumed_ = 0;  // by the peer, in all

  std::deque<Buffer> arrived_;
  size_t read_here_ = 0;   // of the first of them
  uint64_t received_ = 0;  // in all
  uint64_t read_ = 0;      // in all
  uint64_t told_ = 0;      // of it
};

}  // namespace syncline::collective
