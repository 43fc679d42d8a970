#include "comm/rpc/address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<AddressList> Resolve(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  const char* host = address.host.empty() ? nullptr : address.host.c_str();
  if (const int error = getaddrinfo(host, port.c_str(), &hints, &found); error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot resolve host '", address.host, "': ", gai_strerror(error)));
  }
  return AddressList(found, freeaddrinfo);
}

bool IsLoopbackAddress(const addrinfo& entry) {
  if (entry.ai_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(entry.ai_addr);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  if (entry.ai_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry.ai_addr);
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
  }
  return false;
}

absl::Status BindError(const HostPort& address, int error) {
  const std::string where = address.ToString();
  if (error == EADDRINUSE) {
    return WithFailure(
        absl::UnavailableError(absl::StrCat(where,
                                            " is already in use; stop the process that "
                                            "listens there (ss -ltnp 'sport = :",
                                            address.port, "') or choose another port")),
        Failure::kPortInUse);
  }
  if (error == EACCES) {
    return absl::PermissionDeniedError(
        absl::StrCat("not allowed to listen on ", where, "; choose a port above 1023"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen on ", where, ": ", std::strerror(error),
                   "; choose an address of this host (ip addr)"));
}

// Returns an invalid descriptor if the system has no such sockets.
UniqueFd SocketFor(const addrinfo& entry) {
  UniqueFd fd(socket(entry.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Connections in TIME_WAIT do not block a restart, a listener does.
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  return fd;
}

absl::StatusOr<UniqueFd> Bind(const HostPort& address) {
  SYNCLINE_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(address));
  int last_error = EADDRNOTAVAIL;
  for (const addrinfo* entry = addresses.get(); entry != nullptr;
       entry = entry->ai_next) {
    UniqueFd fd = SocketFor(*entry);
    if (!fd.valid()) continue;
    if (bind(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0) return fd;
    last_error = errno;
    if (last_error == EADDRINUSE) break;
  }
  return BindError(address, last_error);
}

absl::StatusOr<uint16_t> PortOf(int socket, const HostPort& address) {
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return BindError(address, errno);
  }
  return ntohs(bound.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                   : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

// The port has the same offset in IPv4 and IPv6 addresses.
void SetPort(sockaddr& address, uint16_t port) {
  reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
}

}  // namespace

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not an address; write HOST:PORT, for example 127.0.0.1:7070"));
  }
  absl::string_view host = text.substr(0, colon);
  const bool bracketed =
      absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (!bracketed && host.find_first_of(":[]") != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is not an address; write HOST:PORT alone, IPv6 hosts in "
                     "brackets: [::1]:7070"));
  }
  return HostPort{host.empty() ? "0.0.0.0" : std::string(host),
                  static_cast<uint16_t>(port)};
}

absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view text) {
  std::vector<std::string> addresses;
  for (const absl::string_view one : absl::StrSplit(text, ',')) {
    SYNCLINE_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(one));
    if (parsed.port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", one, "' names no port to connect to"));
    }
    std::string address(one);
    if (std::find(addresses.begin(), addresses.end(), address) != addresses.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' names ", one, " twice"));
    }
    addresses.push_back(std::move(address));
  }
  return addresses;
}

bool IsLoopback(const std::string& host) {
  const auto addresses = Resolve({host, 0});
  if (!addresses.ok()) return false;
  for (const addrinfo* entry = addresses->get(); entry != nullptr;
       entry = entry->ai_next) {
    if (!IsLoopbackAddress(*entry)) return false;
  }
  return true;
}

absl::Status CheckCanListen(const HostPort& address) { return Bind(address).status(); }

absl::StatusOr<UniqueFd> Listen(HostPort& address) {
  SYNCLINE_ASSIGN_OR_RETURN(UniqueFd socket, Bind(address));
  // Two sockets may bind the same port at the same moment, but only one of them may
  // listen.
  if (listen(socket.get(), SOMAXCONN) != 0) return BindError(address, errno);
  SYNCLINE_ASSIGN_OR_RETURN(address.port, PortOf(socket.get(), address));
  return socket;
}

namespace {

bool IsSameAddress(const addrinfo& a, const addrinfo& b) {
  return a.ai_addrlen == b.ai_addrlen &&
         std::memcmp(a.ai_addr, b.ai_addr, a.ai_addrlen) == 0;
}

// /etc/hosts may list the same address twice.
bool CameBefore(const addrinfo* list, const addrinfo& entry) {
  while (list != &entry && !IsSameAddress(*list, entry)) list = list->ai_next;
  return list != &entry;
}

absl::StatusOr<std::vector<UniqueFd>> ListenOnceAtAll(HostPort& address) {
  const bool is_any = address.host == "0.0.0.0" || address.host == "::";
  SYNCLINE_ASSIGN_OR_RETURN(const AddressList addresses,
                            Resolve({is_any ? "::" : address.host, address.port}));
  std::vector<UniqueFd> listeners;
  int last_error = EADDRNOTAVAIL;
  for (const addrinfo* entry = addresses.get(); entry != nullptr;
       entry = entry->ai_next) {
    if (CameBefore(addresses.get(), *entry)) continue;
    UniqueFd fd = SocketFor(*entry);
    if (!fd.valid()) continue;
    const int off = 0;
    if (is_any) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    SetPort(*entry->ai_addr, address.port);
    if (bind(fd.get(), entry->ai_addr, entry->ai_addrlen) != 0 ||
        listen(fd.get(), SOMAXCONN) != 0 || fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) {
      last_error = errno;
      // Does not share the port with another process, even if that listens on only one of
      // the addresses.
      if (last_error == EADDRINUSE) return BindError(address, last_error);
      continue;
    }
    SYNCLINE_ASSIGN_OR_RETURN(address.port, PortOf(fd.get(), address));
    listeners.push_back(std::move(fd));
  }
  if (!listeners.empty()) return listeners;
  if (!is_any) return BindError(address, last_error);
  // The kernel has no IPv6.
  HostPort v4 = {"0.0.0.0", address.port};
  SYNCLINE_ASSIGN_OR_RETURN(UniqueFd only, Listen(v4));
  if (fcntl(only.get(), F_SETFL, O_NONBLOCK) != 0) return BindError(address, errno);
  address.port = v4.port;
  listeners.push_back(std::move(only));
  return listeners;
}

}  // namespace

absl::StatusOr<std::vector<UniqueFd>> ListenAtAll(HostPort& address) {
  // A port that is free at one address may be taken at the next.
  constexpr int kTries = 16;
  const int wanted = address.port;
  auto listeners = ListenOnceAtAll(address);
  for (int i = 1;
       wanted == 0 && i < kTries && FailureOf(listeners.status()) == Failure::kPortInUse;
       ++i) {
    address.port = 0;
    listeners = ListenOnceAtAll(address);
  }
  return listeners;
}

absl::StatusOr<int> PickFreePort(const std::string& host) {
  SYNCLINE_ASSIGN_OR_RETURN(const UniqueFd socket, Bind({host, 0}));
  return PortOf(socket.get(), {host, 0});
}

}  // namespace syncline
