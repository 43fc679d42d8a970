// A Channel carries the bytes of a connected socket: as they are (plain_channel.h), or
// encrypted (tls_channel.h). Until Handshake() is done, the peer is unknown and nothing
// may be read. No call blocks. None calls the user's code, except to find keys.
//
// Thread safety: none, one thread.
#pragma once

#include <sys/uio.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/transport.h"

namespace syncline {

// Returns the key of a name, or null.
using KeyFinder = std::function<const SecretKey*(std::string_view identity)>;

// UnknownIdentity() is the error of a handshake with an unknown name. Any other handshake
// error counts as Refusal::kHandshake.
bool IsUnknownIdentity(const absl::Status& status);
absl::Status UnknownIdentity();

class Channel {
 public:
  virtual ~Channel() = default;

  // Continues the handshake. Returns true once both sides know each other.
  virtual absl::StatusOr<bool> Handshake() = 0;
  // Returns the name of the peer that dialled. Valid after the handshake.
  virtual const std::string& identity() const = 0;

  // Reads into the pieces, in order. Returns 0 if nothing is there now. Fails with
  // Unavailable at the end of the stream, and with DataLoss if the bytes were tampered
  // with.
  virtual absl::StatusOr<size_t> Read(std::span<const iovec> into) = 0;
  // Returns true if Read would return bytes although the socket has none.
  virtual bool HasBuffered() const = 0;

  // Takes as many bytes as it can from the front of the pieces, and returns their number.
  // Returns 0 if it must wait for the socket. The caller may discard taken bytes, but
  // they may still need Flush().
  virtual absl::StatusOr<size_t> Write(std::span<const iovec> from) = 0;
  // Sends what was taken. Returns true when the kernel has all of it.
  virtual absl::StatusOr<bool> Flush() = 0;
  // Returns the number of bytes that were taken but are not in the kernel yet.
  virtual size_t unsent_bytes() const = 0;
};

// Both read from or write to a socket once. They return the number of bytes, or 0 if the
// call would block, and fail with Unavailable if the peer is gone.
absl::StatusOr<size_t> ReceiveFrom(int fd, std::span<const iovec> into);
absl::StatusOr<size_t> SendTo(int fd, std::span<const iovec> from);

}  // namespace syncline
