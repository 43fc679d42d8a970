// Finds the user of this host at the other end of a loopback connection. Without TLS
// peers do not authenticate there, and every user of the host can connect to loopback
// addresses.
//
// Thread safety: immutable.
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

  // Returns false if not even the listener at `servers` can be found; then users cannot
  // be identified. This is so in some sandboxes.
  bool CanTell(const std::vector<SocketName>& servers) const {
    return sockets_.HasListener(servers);
  }

  struct Connection {
    std::string peer;                      // gRPC's name, such as "ipv4:127.0.0.1:41234"
    std::vector<SocketName> servers = {};  // its possible server ends; empty: any
  };
  // Returns OK for this process's user and for root. Fails with PermissionDenied for
  // other users, and for peers that the kernel does not know, such as those of other
  // hosts.
  absl::Status Check(const Connection& connection) const;

 private:
  const uid_t own_;
  const HostSockets sockets_;
};

}  // namespace syncline
