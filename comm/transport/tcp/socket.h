// The system calls of TCP connections. All sockets are non-blocking.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/unique_fd.h"
#include "comm/transport/tcp/address.h"

namespace syncline {

struct Listener {
  UniqueFd fd;
  uint16_t port;
};

// Fails with Unavailable if the address is not this host's, or is taken.
absl::StatusOr<Listener> ListenAt(const SocketAddress& address);

// Accepts a connection. Returns an invalid descriptor if none is waiting. Fails if the
// process has no descriptor left.
absl::StatusOr<UniqueFd> AcceptFrom(int listener, SocketAddress& peer);

// Starts connecting. The descriptor is writable once the connection is made or has
// failed.
absl::StatusOr<UniqueFd> DialTo(const SocketAddress& address);

// Sets options of a connection: small messages are sent at once, a peer that is silent
// for `failure_timeout` counts as gone, and at most about `unsent_bytes` wait in the
// kernel.
void TuneSocket(int fd, absl::Duration failure_timeout, size_t unsent_bytes);

// Converts `tcpi_min_rtt`. Returns zero if the kernel has measured nothing yet: then the
// value is ~0 until the first sample, which takes longer if the first packet was lost.
absl::Duration RoundTripOf(uint32_t min_rtt_microseconds);

}  // namespace syncline
