// Where a TCP transport listens: "tcp:192.0.2.7:41234", "tcp:[2001:db8::7]:41234". Only
// numbers, so that connecting never waits for a name service.
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

// InvalidArgument unless `host` is an IPv4 or IPv6 address in numbers, without brackets.
absl::StatusOr<SocketAddress> MakeSocketAddress(const std::string& host, uint16_t port);

std::string EncodeTcpAddress(const std::string& host, uint16_t port);
absl::StatusOr<SocketAddress> ParseTcpAddress(const std::string& address);

// "192.0.2.7:41234", for people.
std::string DescribeAddress(const SocketAddress& address);

// The first address of `host` in numbers; may wait for a name service. Unavailable when
// it has none.
absl::StatusOr<std::string> ResolveHost(const std::string& host);

// The address of this host that packets to `host` (in numbers) would come from: where
// those on the same network reach this host. Sends nothing.
absl::StatusOr<std::string> SourceAddressTowards(const std::string& host);

// The address of this host on its default route, or else any that is not of loopback.
absl::StatusOr<std::string> PrimaryAddress();

}  // namespace syncline
