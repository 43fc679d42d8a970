#include "comm/rpc/local_user.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"

namespace syncline {
namespace {

constexpr uid_t kRoot = 0;

absl::Status Refused(const std::string& who, uid_t own) {
  return WithFailure(
      absl::PermissionDeniedError(absl::StrCat(
          who, "; without TLS this coordinator is for the user that runs it (", own,
          ") and for root: be that user, give certificates to all (syncline certs init), "
          "or start it with --insecure to let in every user of this host")),
      Failure::kUsage);
}

}  // namespace

LocalUsers LocalUsers::OfThisProcess() {
  return LocalUsers(geteuid(), HostSockets::OfThisHost());
}

absl::Status LocalUsers::Check(const Connection& connection) const {
  // Checks peers that are not on loopback too: a process on this host may use any of its
  // addresses.
  const std::optional<SocketName> peer = ParsePeer(connection.peer);
  std::set<uint32_t> users;
  if (peer) users = sockets_.UsersOf(*peer, connection.servers);
  if (users.empty()) {
    // The message does not have the port, which differs each time, so that equal refusals
    // are counted together.
    const std::string host = connection.peer.substr(0, connection.peer.rfind(':'));
    return Refused(
        absl::StrCat("the kernel does not say which user of this host calls from ", host),
        own_);
  }
  // There may be several users if the port is connected to several servers. All must be
  // allowed.
  const auto stranger = std::ranges::find_if(
      users, [&](uint32_t user) { return user != own_ && user != kRoot; });
  if (stranger == users.end()) return absl::OkStatus();
  return Refused(absl::StrCat("you are user ", *stranger, " of this host"), own_);
}

}  // namespace syncline
