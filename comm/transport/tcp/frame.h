// How messages lie in a connection's stream of bytes:
//
//   u32 bytes of the payload      u16 bytes of the header      u16 zero
//   the header                    the payload
//
// FrameReader says where the next bytes of the stream belong, so that payloads land in
// the receiver's memory without a copy in between, and hands on whole messages. It knows
// no socket. What it holds is bounded: one header, one payload that the receiver has
// agreed to, and a small staging area.
//
//   while (const size_t got = readv(fd, reader.Space()...)) reader.Advance(got);
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "comm/base/buffer.h"
#include "comm/base/limits.h"
#include "comm/transport/transport.h"

namespace syncline {

struct FramePrefix {
  uint32_t payload_bytes = 0;
  uint16_t header_bytes = 0;
  uint16_t zero = 0;
};
static_assert(sizeof(FramePrefix) == 8);

// A prefix with its header, ready to go out.
struct FrameHead {
  FrameHead(ByteView header, size_t payload_bytes);
  ByteView view() const { return {bytes.data(), size}; }

  std::array<std::byte, sizeof(FramePrefix) + kMessageHeaderBytes> bytes;
  size_t size;
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
  enum class Part { kPrefix, kHeader, kPayload, kRefusedPayload };

  absl::Status Parse();
  // False when more bytes must come first.
  absl::StatusOr<bool> ParsePart();
  absl::Status ParsePrefix();
  void BeginPayload();
  void LandStaged();
  void DropStaged();
  void Deliver();
  size_t staged() const { return end_ - begin_; }

  Receiver& receiver_;
  const Buffer staging_;
  size_t begin_ = 0, end_ = 0;  // what of the staging area is not parsed
  Part part_ = Part::kPrefix;
  FramePrefix prefix_;
  std::array<std::byte, kMessageHeaderBytes> header_;
  Buffer payload_;
  size_t landed_ = 0;  // bytes of the payload, or of a refused one, that came
  uint64_t delivered_ = 0;
  bool stopped_ = false;
};

}  // namespace syncline
