// The TCP sockets of this host and the users who own them, from the kernel.
//
// A query for one connection is fast (NETLINK_SOCK_DIAG). If that is not available, reads
// the kernel's tables (/proc/net/tcp, tcp6), which takes time in proportion to their
// size.
//
// Thread safety: immutable.
//
//   const HostSockets sockets = HostSockets::OfThisHost();
//   for (uint32_t user : sockets.UsersOf(*ParsePeer(context.peer()), servers)) ...
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace syncline {

struct SocketName {
  // IPv4 as ::ffff:a.b.c.d, since a client may use either kind of socket.
  in6_addr host = {};
  uint16_t port = 0;

  bool operator==(const SocketName& other) const {
    return port == other.port && std::memcmp(&host, &other.host, sizeof(host)) == 0;
  }
};

// Returns the name for an IPv4 or IPv6 address.
SocketName NameOf(const sockaddr& address);
// Parses gRPC's form: "ipv4:127.0.0.1:41234", "ipv6:%5B::1%5D:41234".
std::optional<SocketName> ParsePeer(const std::string& peer);

// Resolves an address such as "localhost:7070" to socket names. Empty if it cannot be
// resolved.
std::vector<SocketName> NamesOf(const std::string& address);

class HostSockets {
 public:
  // Reads net/tcp and net/tcp6 in the folder `proc`; tests use their own.
  explicit HostSockets(std::string proc) : proc_(std::move(proc)) {}
  static HostSockets OfThisHost(std::string proc = "/proc/self");

  // Returns true if a socket is known to listen at one of `names`.
  bool HasListener(const std::vector<SocketName>& names) const;

  // Returns the users who are connected from `peer` to one of `servers`, or to any
  // address if `servers` is empty. Counts only established sockets: a closed socket has
  // no owner, whatever the kernel reports.
  std::set<uint32_t> UsersOf(const SocketName& peer,
                             const std::vector<SocketName>& servers) const;

 private:
  const std::string proc_;
  bool asks_kernel_ = false;
};

}  // namespace syncline
