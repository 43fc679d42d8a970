#include "comm/rpc/local_user.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "comm/base/failure.h"

namespace syncline {
namespace {

constexpr uid_t kRoot = 0;
// A table that changes while it is read may leave an entry out.
constexpr int kLooks = 5;

// The columns of a line of /proc/net/tcp.
constexpr size_t kLocal = 1, kRemote = 2, kState = 3, kUser = 7, kInode = 9;
constexpr absl::string_view kEstablished = "01";

struct SocketName {
  in6_addr host =
      {};  // of IPv4 as ::ffff:a.b.c.d: a client may use either kind of socket
  uint16_t port = 0;

  bool operator==(const SocketName& other) const {
    return port == other.port && std::memcmp(&host, &other.host, sizeof(host)) == 0;
  }
  bool IsLoopback() const {
    if (IN6_IS_ADDR_LOOPBACK(&host)) return true;
    return IN6_IS_ADDR_V4MAPPED(&host) && host.s6_addr[12] == 127;
  }
};

// Of gRPC: "ipv4:127.0.0.1:41234", "ipv6:%5B::1%5D:41234".
std::optional<SocketName> ParsePeer(const std::string& peer) {
  const size_t kind_end = peer.find(':'), host_end = peer.rfind(':');
  int port = 0;
  if (host_end == std::string::npos || kind_end >= host_end ||
      !absl::SimpleAtoi(peer.substr(host_end + 1), &port) || port < 0 || port > 65535) {
    return std::nullopt;
  }
  std::string host = peer.substr(kind_end + 1, host_end - kind_end - 1);
  if (absl::StartsWith(peer, "ipv4:")) {
    host = absl::StrCat("::ffff:", host);
  } else if (absl::StartsWith(peer, "ipv6:")) {
    host = std::string(absl::StripPrefix(absl::StripSuffix(host, "%5D"), "%5B"));
    host = std::string(absl::StripPrefix(absl::StripSuffix(host, "]"), "["));
  } else {
    return std::nullopt;
  }
  SocketName name;
  name.port = static_cast<uint16_t>(port);
  if (inet_pton(AF_INET6, host.c_str(), &name.host) != 1) return std::nullopt;
  return name;
}

// Of the kernel: "0100007F:1B9E", or four such words before the colon. Each word has the
// order of bytes of this machine.
std::optional<SocketName> ParseTableName(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() != 2) return std::nullopt;
  std::array<uint32_t, 4> words = {0, 0, htonl(0xffff), 0};
  uint32_t port = 0;
  const bool is_short = parts[0].size() == 8;
  if ((!is_short && parts[0].size() != 32) || !absl::SimpleHexAtoi(parts[1], &port)) {
    return std::nullopt;
  }
  for (size_t i = is_short ? 3 : 0, at = 0; i < words.size(); ++i, at += 8) {
    if (!absl::SimpleHexAtoi(parts[0].substr(at, 8), &words[i])) return std::nullopt;
  }
  SocketName name;
  name.port = static_cast<uint16_t>(port);
  std::memcpy(&name.host, words.data(), sizeof(name.host));
  return name;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The users of the sockets that `peer` may be.
std::set<uint32_t> UsersIn(const std::string& table, const SocketName& peer,
                           uint16_t server_port) {
  std::set<uint32_t> users;
  for (absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<absl::string_view> columns =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (columns.size() <= kInode || columns[kState] != kEstablished) continue;
    const auto local = ParseTableName(columns[kLocal]);
    if (!local || !(*local == peer)) continue;
    const auto remote = ParseTableName(columns[kRemote]);
    if (!remote || (server_port != 0 && remote->port != server_port)) continue;
    uint32_t user = 0;
    if (columns[kInode] == "0" || !absl::SimpleAtoi(columns[kUser], &user)) continue;
    users.insert(user);
  }
  return users;
}

absl::Status Refused(const std::string& who, uid_t own) {
  return WithFailure(
      absl::PermissionDeniedError(absl::StrCat(
          who, "; without TLS this coordinator is for the user that runs it (", own,
          ") and for root: be that user, give certificates to all (syncline certs init), "
          "or start it with --insecure to let in every user of this host")),
      Failure::kUsage);
}

}  // namespace

LocalUsers LocalUsers::OfThisProcess() { return LocalUsers(geteuid(), "/proc/self"); }

bool LocalUsers::CanTell() const {
  return absl::StrContains(ReadAll(absl::StrCat(proc_, "/net/tcp")), "uid");
}

absl::Status LocalUsers::Check(const Connection& connection) const {
  const std::optional<SocketName> peer = ParsePeer(connection.peer);
  if (peer && !peer->IsLoopback()) return absl::OkStatus();
  std::set<uint32_t> users;
  for (int look = 0; peer && users.empty() && look < kLooks; ++look) {
    for (const char* table : {"/net/tcp", "/net/tcp6"}) {
      users.merge(
          UsersIn(ReadAll(absl::StrCat(proc_, table)), *peer, connection.server_port));
    }
  }
  if (users.empty()) {
    return Refused(absl::StrCat("the kernel does not say which user of this host has ",
                                connection.peer),
                   own_);
  }
  // More than one where the port is connected to several servers: none may be a stranger.
  const auto stranger = std::ranges::find_if(
      users, [&](uint32_t user) { return user != own_ && user != kRoot; });
  if (stranger == users.end()) return absl::OkStatus();
  return Refused(absl::StrCat("you are user ", *stranger, " of this host"), own_);
}

}  // namespace syncline
