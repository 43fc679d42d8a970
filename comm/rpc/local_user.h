// Which user of this host is at the other end of a loopback connection. Without TLS nobody
// proves who they are there, and every user of a host reaches its loopback addresses.
//
// The kernel's tables of sockets say whose each one is (/proc/net/tcp, tcp6). A socket that
// was closed belongs to nobody any more, whatever they say of it: only established ones
// count.
//
// Thread safety: immutable, but for what the kernel says.
//
//   const LocalUsers users = LocalUsers::OfThisProcess();
//   SYNCLINE_RETURN_IF_ERROR(users.Check({.peer = context.peer(), .server_port = 7070}));
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace syncline {

class LocalUsers {
 public:
  // `proc`: tests bring their own; there are the tables net/tcp and net/tcp6.
  LocalUsers(uid_t own, std::string proc) : own_(own), proc_(std::move(proc)) {}
  static LocalUsers OfThisProcess();

  // False where the tables cannot be read at all: then nobody can be told apart.
  bool CanTell() const;

  struct Connection {
    std::string peer;          // as gRPC writes it: "ipv4:127.0.0.1:41234"
    uint16_t server_port = 0;  // that it is connected to; 0: any
  };
  // OK for the own user, for root, and for peers that are not on loopback. PermissionDenied
  // for other users, and for whom the tables do not have.
  absl::Status Check(const Connection& connection) const;

 private:
  const uid_t own_;
  const std::string proc_;
};

}  // namespace syncline
