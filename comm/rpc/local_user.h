// Which user of this host is at the other end of a loopback connection. Without TLS nobody
// proves who they are there, and every user of a host reaches its loopback addresses.
//
// Thread safety: immutable, but for what the kernel says.
//
//   const LocalUsers users = LocalUsers::OfThisProcess();
//   const std::vector<SocketName> servers = NamesOf("127.0.0.1:7070");
//   SYNCLINE_RETURN_IF_ERROR(users.Check({.peer = context.peer(), .servers = servers}));
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "comm/rpc/host_sockets.h"

namespace syncline {

class LocalUsers {
 public:
  LocalUsers(uid_t own, HostSockets sockets) : own_(own), sockets_(std::move(sockets)) {}
  static LocalUsers OfThisProcess();

  // False where not even whoever listens at `servers` is known: then nobody can be told
  // apart. So it is in some sandboxes.
  bool CanTell(const std::vector<SocketName>& servers) const {
    return sockets_.HasListener(servers);
  }

  struct Connection {
    std::string peer;                      // as gRPC writes it: "ipv4:127.0.0.1:41234"
    std::vector<SocketName> servers = {};  // one of them it is connected to; none: any
  };
  // OK for the own user and for root. PermissionDenied for other users, and for whom the
  // kernel does not know, such as peers of other hosts.
  absl::Status Check(const Connection& connection) const;

 private:
  const uid_t own_;
  const HostSockets sockets_;
};

}  // namespace syncline
