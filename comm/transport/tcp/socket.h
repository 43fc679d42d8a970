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

// Unavailable when the address is not this host's, or taken.
absl::StatusOr<Listener> ListenAt(const SocketAddress& address);

// No descriptor when nobody is waiting. An error when none is left.
absl::StatusOr<UniqueFd> AcceptFrom(int listener, SocketAddress& peer);

// A connection that is under way: writable once it is made, or has failed.
absl::StatusOr<UniqueFd> DialTo(const SocketAddress& address);

// Small messages leave at once, peers that are silent for `failure_timeout` are gone, and
// no more than about `unsent_bytes` wait in the kernel.
void TuneSocket(int fd, absl::Duration failure_timeout, size_t unsent_bytes);

// What `tcpi_min_rtt` says; zero when the kernel has measured nothing yet. It says ~0 until
// the first sample, which a first packet that was lost puts off.
absl::Duration RoundTripOf(uint32_t min_rtt_microseconds);

}  // namespace syncline
