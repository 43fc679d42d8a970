// The TCP sockets of this host, and which user each one belongs to, as the kernel says.
//
// Asked for one connection it answers at once (NETLINK_SOCK_DIAG). Where it cannot be asked
// its tables are read (/proc/net/tcp, tcp6), which takes as long as they are.
//
// Thread safety: immutable, but for what the kernel says.
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
  in6_addr host =
      {};  // of IPv4 as ::ffff:a.b.c.d: a client may use either kind of socket
  uint16_t port = 0;

  bool operator==(const SocketName& other) const {
    return port == other.port && std::memcmp(&host, &other.host, sizeof(host)) == 0;
  }
};

// Of an IPv4 or IPv6 address.
SocketName NameOf(const sockaddr& address);
// Of what gRPC writes: "ipv4:127.0.0.1:41234", "ipv6:%5B::1%5D:41234".
std::optional<SocketName> ParsePeer(const std::string& peer);

// What somebody listens on who was told "localhost:7070". None for what cannot be looked up.
std::vector<SocketName> NamesOf(const std::string& address);

class HostSockets {
 public:
  // What is in net/tcp and net/tcp6 of the folder `proc`: tests bring their own.
  explicit HostSockets(std::string proc) : proc_(std::move(proc)) {}
  static HostSockets OfThisHost(std::string proc = "/proc/self");

  // Whether somebody is known to listen at one of `names`.
  bool HasListener(const std::vector<SocketName>& names) const;

  // The users who are connected from `peer` to one of `servers`, or to anything when there
  // are none. A socket that was closed belongs to nobody any more, whatever the kernel says
  // of it: only established ones count.
  std::set<uint32_t> UsersOf(const SocketName& peer,
                             const std::vector<SocketName>& servers) const;

 private:
  const std::string proc_;
  bool asks_kernel_ = false;
};

}  // namespace syncline
