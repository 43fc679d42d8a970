#include "comm/rpc/host_sockets.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/address.h"

namespace syncline {
namespace {

constexpr uint32_t kEstablished = 1, kListening = 10;  // states of a socket

// How often a table is read: one that changes meanwhile may omit an entry.
constexpr int kLooks = 5;
// The columns of a line of /proc/net/tcp.
constexpr size_t kLocal = 1, kRemote = 2, kState = 3, kUser = 7, kInode = 9;

struct Socket {
  SocketName local = {}, remote = {};
  uint32_t state = 0;
  uint32_t user = 0;
  bool is_open = false;
};

// Parses the kernel's form: "0100007F:1B9E", or four such words before the colon. The
// bytes of each word have the order of this machine.
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

std::optional<Socket> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> columns =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  Socket socket;
  if (columns.size() <= kInode || !absl::SimpleHexAtoi(columns[kState], &socket.state) ||
      !absl::SimpleAtoi(columns[kUser], &socket.user)) {
    return std::nullopt;
  }
  const auto local = ParseTableName(columns[kLocal]);
  const auto remote = ParseTableName(columns[kRemote]);
  if (!local || !remote) return std::nullopt;
  socket.local = *local;
  socket.remote = *remote;
  socket.is_open = columns[kInode] != "0";
  return socket;
}

void ForEachInTables(const std::string& proc,
                     absl::FunctionRef<void(const Socket&)> see) {
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream file(absl::StrCat(proc, table));
    std::ostringstream lines;
    lines << file.rdbuf();
    for (absl::string_view line : absl::StrSplit(lines.str(), '\n')) {
      if (const auto socket = ParseLine(line)) see(*socket);
    }
  }
}

// The kernel's answer about one socket: the socket, or that there is none.
struct Answer {
  std::optional<Socket> socket;
};

bool IsV4(const SocketName& name) { return IN6_IS_ADDR_V4MAPPED(&name.host); }

void Put(const SocketName& name, std::array<__be32, 4>& host) {
  host = {};
  const size_t skipped = IsV4(name) ? 12 : 0;
  std::memcpy(host.data(), name.host.s6_addr + skipped, sizeof(name.host) - skipped);
}

inet_diag_req_v2 QuestionFor(const SocketName& local, const SocketName& remote) {
  inet_diag_req_v2 question = {};
  question.sdiag_family = IsV4(local) ? AF_INET : AF_INET6;
  question.sdiag_protocol = IPPROTO_TCP;
  question.idiag_states = ~0U;
  question.id.idiag_sport = htons(local.port);
  question.id.idiag_dport = htons(remote.port);
  std::array<__be32, 4> host;
  Put(local, host);
  std::memcpy(question.id.idiag_src, host.data(), sizeof(host));
  Put(remote, host);
  std::memcpy(question.id.idiag_dst, host.data(), sizeof(host));
  std::fill(std::begin(question.id.idiag_cookie), std::end(question.id.idiag_cookie),
            INET_DIAG_NOCOOKIE);
  return question;
}

// Asks the kernel for the best match. If there is no such connection, it returns the
// socket that listens at `local`. Returns nothing if the kernel could not be asked.
std::optional<Answer> AskKernel(const SocketName& local, const SocketName& remote) {
  const UniqueFd fd(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd.valid()) return std::nullopt;
  const timeval patience = {.tv_sec = 1, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  struct {
    nlmsghdr header;
    inet_diag_req_v2 question;
  } request = {};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.question = QuestionFor(local, remote);
  const sockaddr_nl kernel = {
      .nl_family = AF_NETLINK, .nl_pad = 0, .nl_pid = 0, .nl_groups = 0};
  if (sendto(fd.get(), &request, sizeof(request), 0,
             reinterpret_cast<const sockaddr*>(&kernel), sizeof(kernel)) < 0) {
    return std::nullopt;
  }
  alignas(nlmsghdr) std::array<char, 8192> reply;
  const ssize_t got = recv(fd.get(), reply.data(), reply.size(), 0);
  nlmsghdr header;
  if (got < static_cast<ssize_t>(sizeof(header))) return std::nullopt;
  std::memcpy(&header, reply.data(), sizeof(header));
  const char* const body = reply.data() + NLMSG_HDRLEN;
  const size_t size = static_cast<size_t>(got) - NLMSG_HDRLEN;
  if (header.nlmsg_type == NLMSG_ERROR && size >= sizeof(int)) {
    int error = 0;
    std::memcpy(&error, body, sizeof(error));
    return error == -ENOENT ? std::optional<Answer>(Answer{}) : std::nullopt;
  }
  inet_diag_msg found;
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || size < sizeof(found)) {
    return std::nullopt;
  }
  std::memcpy(&found, body, sizeof(found));
  return Answer{Socket{.local = local,
                       .remote = remote,
                       .state = found.idiag_state,
                       .user = found.idiag_uid,
                       .is_open = found.idiag_inode != 0}};
}

bool IsConnected(const Socket& socket) {
  return socket.state == kEstablished && socket.is_open;
}

bool KernelKnowsListener(const std::vector<SocketName>& names) {
  return std::ranges::any_of(names, [](const SocketName& name) {
    SocketName anybody;
    if (IsV4(name)) inet_pton(AF_INET6, "::ffff:0.0.0.0", &anybody.host);
    const auto answer = AskKernel(name, anybody);
    return answer && answer->socket && answer->socket->state == kListening;
  });
}

// Returns nothing if the kernel could not be asked. A kernel without this module knows no
// sockets at all. An answer without users is therefore believed only if it knows the
// server.
std::optional<std::set<uint32_t>> AskForUsers(const SocketName& peer,
                                              const std::vector<SocketName>& servers) {
  std::set<uint32_t> users;
  for (const SocketName& server : servers) {
    if (IsV4(server) != IsV4(peer)) continue;
    const auto answer = AskKernel(peer, server);
    if (!answer) return std::nullopt;
    if (answer->socket && IsConnected(*answer->socket)) {
      users.insert(answer->socket->user);
    }
  }
  if (users.empty() && !KernelKnowsListener(servers)) return std::nullopt;
  return users;
}

bool Contains(const std::vector<SocketName>& names, const SocketName& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

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
  // Removes the zone of a link-local address: "fe80::1%252", percent-encoded.
  host.resize(std::min(host.size(), host.find('%')));
  SocketName name;
  name.port = static_cast<uint16_t>(port);
  if (inet_pton(AF_INET6, host.c_str(), &name.host) != 1) return std::nullopt;
  return name;
}

SocketName NameOf(const sockaddr& address) {
  SocketName name;
  if (address.sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    name.host = v6.sin6_addr;
    name.port = ntohs(v6.sin6_port);
    return name;
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  name.host.s6_addr[10] = name.host.s6_addr[11] = 0xff;
  std::memcpy(&name.host.s6_addr[12], &v4.sin_addr, sizeof(v4.sin_addr));
  name.port = ntohs(v4.sin_port);
  return name;
}

std::vector<SocketName> NamesOf(const std::string& address) {
  const auto target = ParseHostPort(address);
  if (!target.ok()) return {};
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(target->host.c_str(), nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<SocketName> names;
  for (const addrinfo* next = list; next != nullptr; next = next->ai_next) {
    SocketName& name = names.emplace_back(NameOf(*next->ai_addr));
    name.port = target->port;
  }
  return names;
}

HostSockets HostSockets::OfThisHost(std::string proc) {
  HostSockets sockets(std::move(proc));
  sockets.asks_kernel_ = true;
  return sockets;
}

bool HostSockets::HasListener(const std::vector<SocketName>& names) const {
  if (asks_kernel_ && KernelKnowsListener(names)) return true;
  bool found = false;
  ForEachInTables(proc_, [&](const Socket& socket) {
    found = found || (socket.state == kListening && Contains(names, socket.local));
  });
  return found;
}

std::set<uint32_t> HostSockets::UsersOf(const SocketName& peer,
                                        const std::vector<SocketName>& servers) const {
  if (asks_kernel_ && !servers.empty()) {
    if (auto users = AskForUsers(peer, servers)) return *std::move(users);
  }
  std::set<uint32_t> users;
  for (int look = 0; users.empty() && look < kLooks; ++look) {
    ForEachInTables(proc_, [&](const Socket& socket) {
      if (!IsConnected(socket) || !(socket.local == peer)) return;
      if (servers.empty() || Contains(servers, socket.remote)) users.insert(socket.user);
    });
  }
  return users;
}

}  // namespace syncline
