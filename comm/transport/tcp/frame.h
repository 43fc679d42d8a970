// The format of messages in a connection's byte stream. Each message has a lane, which is
// its class (comm/transport/traffic.h). Its payload is sent in pieces, with pieces of
// other lanes between them:
//
//   u32 bytes of the payload   u16 bytes of the header   u8 lane   u8 0   the header
//   u32 bytes of the piece     u16 zero                  u8 lane   u8 1   the piece
//
// FrameReader says where the next bytes of the stream belong, so that payloads land in
// the receiver's memory without another copy, and it passes on complete messages. It uses
// no socket. Its memory is bounded: one header and one payload that the receiver has
// accepted for each lane, and a small staging area.
//
//   while (const size_t got = readv(fd, reader.Space()...)) reader.Advance(got);
//
// Thread safety: none.
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
  uint32_t bytes = 0;  // of the whole payload (kMessage) or of the piece (kPiece)
  uint16_t header_bytes = 0;
  uint8_t lane = 0;
  FrameKind kind = FrameKind::kMessage;
};
static_assert(sizeof(FramePrefix) == 8);

// The bytes that precede a piece in the stream.
struct FrameHead {
  // For the first piece of a message, or for a message without a payload.
  FrameHead(TrafficClass lane, ByteView header, size_t payload_bytes, size_t piece_bytes);
  // For a later piece.
  FrameHead(TrafficClass lane, size_t piece_bytes);
  ByteView view() const { return {bytes.data(), size}; }

  std::array<std::byte, 2 * sizeof(FramePrefix) + kMessageHeaderBytes> bytes;
  size_t size = 0;

 private:
  void Add(const FramePrefix& prefix);
};

class FrameReader {
 public:
  // `receiver` must outlive the reader. At most `staging_bytes` of each payload are
  // copied. REQUIRES: staging_bytes >= 128, so that a whole head fits.
  FrameReader(Receiver& receiver, size_t staging_bytes);

  // Returns where the next bytes belong, in this order. The first buffer is never empty;
  // the second may be.
  std::array<iovec, 2> Space();

  // Tells that `bytes` bytes were put there. Calls the receiver, which may call Stop().
  // Fails with InvalidArgument if they are not a valid frame; the stream cannot be used
  // any more then.
  absl::Status Advance(size_t bytes);

  // The receiver is not called again after this.
  void Stop() { stopped_ = true; }

  uint64_t delivered() const { return delivered_; }

 private:
  enum class Part { kPrefix, kHeader, kPiece };
  // What has arrived of a lane's message.
  struct Lane {
    bool is_open = false;
    bool is_refused = false;
    size_t payload_bytes = 0;
    size_t header_bytes = 0;
    std::array<std::byte, kMessageHeaderBytes> header;
    Buffer payload = {};
    size_t landed = 0;  // counted for refused messages too
  };

  absl::Status Parse();
  // Returns false if more bytes must arrive first.
  absl::StatusOr<bool> ParsePart();
  absl::Status ParsePrefix();
  absl::Status BeginPiece();
  void BeginPayload();
  void LandStaged();
  // Counts `bytes` that arrived of the current piece.
  void Landed(size_t bytes);
  void Deliver(Lane& lane);
  size_t staged() const { return end_ - begin_; }
  Lane& lane() { return lanes_[prefix_.lane]; }

  Receiver& receiver_;
  const Buffer staging_;
  size_t begin_ = 0, end_ = 0;  // the unparsed part of the staging area
  Part part_ = Part::kPrefix;
  FramePrefix prefix_;
  size_t piece_left_ = 0;
  std::array<Lane, kTrafficClasses> lanes_;
  uint64_t delivered_ = 0;
  bool stopped_ = false;
};

}  // namespace syncline
