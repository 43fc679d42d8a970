#include "comm/transport/tcp/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/base/unique_fd.h"

namespace syncline {
namespace {

constexpr char kScheme[] = "tcp:";

absl::Status Malformed(const std::string& address) {
  return absl::InvalidArgumentError(
      absl::StrCat("a malformed address of ", address.size(), " bytes"));
}

std::string HostOf(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* bytes =
      address.family() == AF_INET6
          ? static_cast<const void*>(
                &reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr)
          : &reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr;
  inet_ntop(address.family(), bytes, text.data(), text.size());
  return text.data();
}

std::string HostAndPort(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

// Link-local addresses are of no use to other hosts.
bool IsGlobalIpv6(const sockaddr& address) {
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 copy;
  std::memcpy(&copy, &address, sizeof(copy));
  return !IN6_IS_ADDR_LINKLOCAL(&copy.sin6_addr);
}

}  // namespace

uint16_t SocketAddress::port() const {
  // sockaddr_in and sockaddr_in6 have the port at the same offset.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

absl::StatusOr<SocketAddress> MakeSocketAddress(const std::string& host, uint16_t port) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    address.size = sizeof(v4);
    return address;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    address.size = sizeof(v6);
    return address;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", host.substr(0, 64), "' is not an IP address"));
}

std::string EncodeTcpAddress(const std::string& host, uint16_t port) {
  return absl::StrCat(kScheme, HostAndPort(host, port));
}

absl::StatusOr<SocketAddress> ParseTcpAddress(const std::string& address) {
  std::string_view rest = address;
  if (!rest.starts_with(kScheme)) return Malformed(address);
  rest.remove_prefix(std::strlen(kScheme));
  const size_t colon = rest.rfind(':');
  uint32_t port = 0;
  if (colon == std::string_view::npos ||
      !absl::SimpleAtoi(
          absl::string_view(rest.data() + colon + 1, rest.size() - colon - 1), &port) ||
      port == 0 || port > 65535) {
    return Malformed(address);
  }
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') != host.ends_with(']')) return Malformed(address);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  auto parsed = MakeSocketAddress(std::string(host), static_cast<uint16_t>(port));
  return parsed.ok() ? parsed : Malformed(address);
}

std::string DescribeAddress(const SocketAddress& address) {
  return HostAndPort(HostOf(address), address.port());
}

absl::StatusOr<std::string> ResolveHost(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  if (error != 0 || found == nullptr || found->ai_addrlen > sizeof(sockaddr_storage)) {
    return absl::UnavailableError(
        absl::StrCat("'", host, "' has no address: ", gai_strerror(error)));
  }
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  return HostOf(address);
}

absl::StatusOr<std::string> SourceAddressTowards(const std::string& host) {
  constexpr uint16_t kAnyPort = 9;  // "discard"; nothing is sent
  SYNCLINE_ASSIGN_OR_RETURN(const SocketAddress there, MakeSocketAddress(host, kAnyPort));
  const UniqueFd fd(socket(there.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress here;
  here.size = sizeof(here.storage);
  if (!fd.valid() || connect(fd.get(), there.get(), there.size) != 0 ||
      getsockname(fd.get(), here.get(), &here.size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no way to ", host, ": ", absl::ErrnoToStatus(errno, "").message()));
  }
  return HostOf(here);
}

absl::StatusOr<std::string> PrimaryAddress() {
  // This address is reserved for documentation (RFC 5737), so it is on no local network.
  auto towards_all = SourceAddressTowards("192.0.2.1");
  if (towards_all.ok()) return towards_all;
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return absl::UnavailableError("no network interface");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, freeifaddrs);
  for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
    const bool is_usable =
        entry->ifa_addr != nullptr && (entry->ifa_flags & IFF_LOOPBACK) == 0;
    if (!is_usable) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && !IsGlobalIpv6(*entry->ifa_addr)) continue;
    SocketAddress address;
    address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.size);
    return HostOf(address);
  }
  return absl::UnavailableError("no network interface but loopback");
}

}  // namespace syncline
