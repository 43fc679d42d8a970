// How messages lie in a connection's stream of bytes. Each has a lane, which is its class
// (comm/transport/traffic.h), and its payload comes in pieces, between which those of other
// lanes may come:
//
//   u32 bytes of the payload   u16 bytes of the header   u8 lane   u8 0   the header
//   u32 bytes of the piece     u16 zero                  u8 lane   u8 1   the piece
//
// FrameReader says where the next bytes of the stream belong, so that payloads land in
// the receiver's memory without a copy in between, and hands on whole messages. It knows
// no socket. What it holds is bounded: for each lane one header and one payload that the
// receiver has agreed to, and a small staging area.
//
//   while (const size_t got = readv(fd, reader.Space()...)) reader.Advance(got);
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "comm/base/buffer.h"
#include "comm/base/limits.h"
#include "comm/transport/traffic.h"
#include "comm/transport/transport.h"

namespace syncline {

enum class FrameKind : uint8_t { kMessage = 0, kPiece = 1 };

struct FramePrefix {
  uint32_t bytes = 0;  // of the whole payload, or of the piece
  uint16_t header_bytes = 0;
  uint8_t lane = 0;
  FrameKind kind = FrameKind::kMessage;
};
static_assert(sizeof(FramePrefix) == 8);

// What goes before a piece, ready to go out.
struct FrameHead {
  // Of a message's first piece; of none when it has no payload.
  FrameHead(TrafficClass lane, ByteView header, size_t payload_bytes, size_t piece_bytes);
  // Of a later piece.
  FrameHead(TrafficClass lane, size_t piece_bytes);
  ByteView view() const { return {bytes.data(), size}; }

  std::array<std::byte, 2 * sizeof(FramePrefix) + kMessageHeaderBytes> bytes;
  size_t size = 0;

 private:
  void Add(const FramePrefix& prefix);
};

class FrameReader {
 public:
  // `receiver` outlives the reader. Of payloads, at most `staging_bytes` each are copied.
  // REQUIRES: staging_bytes >= 128, so that a whole head fits.
  FrameReader(Receiver& receiver, size_t staging_bytes);

  // Where the next bytes belong, in this order. The first piece is never empty; the
  // second may be.
  std::array<iovec, 2> Space();

  // `bytes` have been put there. Calls the receiver, which may call Stop().
  // InvalidArgument for what is no frame; the stream is of no use from then on.
  absl::Status Advance(size_t bytes);

  // Calls the receiver never again.
  void Stop() { stopped_ = true; }

  uint64_t delivered() const { return delivered_; }

 private:
  enum class Part { kPrefix, kHeader, kPiece };
  // What has come of a lane's message.
  struct Lane {
    bool is_open = false;
    bool is_refused = false;
    size_t payload_bytes = 0;
    size_t header_bytes = 0;
    std::array<std::byte, kMessageHeaderBytes> header;
    Buffer payload = {};
    size_t landed = 0;  // also of a refused one
  };

  absl::Status Parse();
  // False when more bytes must come first.
  absl::StatusOr<bool> ParsePart();
  absl::Status ParsePrefix();
  absl::Status BeginPiece();
  void BeginPayload();
  void LandStaged();
  // `bytes` of the piece came.
  void Landed(size_t bytes);
  void Deliver(Lane& lane);
  size_t staged() const { return end_ - begin_; }
  Lane& lane() { return lanes_[prefix_.lane]; }

  Receiver& receiver_;
  const Buffer staging_;
  size_t begin_ = 0, end_ = 0;  // what of the staging area is not parsed
  Part part_ = Part::kPrefix;
  FramePrefix prefix_;
  size_t piece_left_ = 0;
  std::array<Lane, kTrafficClasses> lanes_;
  uint64_t delivered_ = 0;
  bool stopped_ = false;
};

}  // namespace syncline
