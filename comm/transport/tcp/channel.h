// How the bytes of a connected socket travel: as they are (plain_channel.h), or sealed
// (tls_channel.h). Before Handshake() is done nobody knows who is there and nothing may be
// read. No call blocks, and none calls the user, but for finding keys.
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

// The key of a name, or null.
using KeyFinder = std::function<const SecretKey*(std::string_view identity)>;

// The error of a handshake with a name that nobody knows; any other is kHandshake.
bool IsUnknownIdentity(const absl::Status& status);
absl::Status UnknownIdentity();

class Channel {
 public:
  virtual ~Channel() = default;

  // Goes on; true once both sides know each other.
  virtual absl::StatusOr<bool> Handshake() = 0;
  // The dialler's, after the handshake.
  virtual const std::string& identity() const = 0;

  // Reads into the pieces, in order; 0 when nothing is there now. Unavailable at the end
  // of the stream, DataLoss when somebody tampered with it.
  virtual absl::StatusOr<size_t> Read(std::span<const iovec> into) = 0;
  // True when Read would give something though the socket has nothing.
  virtual bool HasBuffered() const = 0;

  // Takes from the front of the pieces what it can; 0 when it must wait for the socket.
  // What was taken is not needed any more, but may still need Flush().
  virtual absl::StatusOr<size_t> Write(std::span<const iovec> from) = 0;
  // True when all that was taken is in the kernel's hands.
  virtual absl::StatusOr<bool> Flush() = 0;
  // Taken, but not in the kernel's hands.
  virtual size_t unsent_bytes() const = 0;
};

// One read or write of a socket: bytes moved, 0 when it would block, Unavailable when the
// peer is gone.
absl::StatusOr<size_t> ReceiveFrom(int fd, std::span<const iovec> into);
absl::StatusOr<size_t> SendTo(int fd, std::span<const iovec> from);

}  // namespace syncline
