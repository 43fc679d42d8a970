// Addresses of TCP transports: "tcp:192.0.2.7:41234", "tcp:[2001:db8::7]:41234". Hosts
// are always numeric, so that connecting never waits for a name service.
//
// Thread safety: functions without state.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace syncline {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const;
};

// Fails with InvalidArgument unless `host` is a numeric IPv4 or IPv6 address, without
// brackets.
absl::StatusOr<SocketAddress> MakeSocketAddress(const std::string& host, uint16_t port);

std::string EncodeTcpAddress(const std::string& host, uint16_t port);
absl::StatusOr<SocketAddress> ParseTcpAddress(const std::string& address);

// Returns "192.0.2.7:41234", for messages.
std::string DescribeAddress(const SocketAddress& address);

// Returns the first address of `host`, as a number. May wait for a name service. Fails
// with Unavailable if the host has no address.
absl::StatusOr<std::string> ResolveHost(const std::string& host);

// Returns the address of this host from which packets to `host` (numeric) would be sent.
// Hosts on the same network can reach this host there. Sends nothing.
absl::StatusOr<std::string> SourceAddressTowards(const std::string& host);

// Returns the address of this host on its default route, or otherwise any that is not a
// loopback address.
absl::StatusOr<std::string> PrimaryAddress();

}  // namespace syncline
