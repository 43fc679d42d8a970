#include "comm/transport/tcp/socket.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/descriptors.h"
#include "comm/base/failure.h"

namespace syncline {
namespace {

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 1024;
constexpr int kKeepaliveProbes = 3;
// No real round trip is longer.
constexpr absl::Duration kLongestRoundTrip = absl::Seconds(60);

absl::Status Failed(absl::string_view doing, const SocketAddress& address) {
  return absl::UnavailableError(absl::StrCat(doing, " ", DescribeAddress(address), ": ",
                                             absl::ErrnoToStatus(errno, "").message()));
}

// Sets an option. Errors do not matter: everything also works without options that an old
// kernel lacks.
void Set(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

absl::StatusOr<Listener> ListenAt(const SocketAddress& address) {
  UniqueFd fd(socket(address.family(), kSocketFlags, 0));
  if (!fd.valid()) return Failed("making a socket for", address);
  Set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  SocketAddress bound;
  bound.size = sizeof(bound.storage);
  if (bind(fd.get(), address.get(), address.size) != 0 ||
      listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), bound.get(), &bound.size) != 0) {
    const bool is_in_use = errno == EADDRINUSE;
    const absl::Status failed = Failed("listening at", address);
    return is_in_use ? WithFailure(failed, Failure::kPortInUse) : failed;
  }
  return Listener{std::move(fd), bound.port()};
}

absl::StatusOr<UniqueFd> AcceptFrom(int listener, SocketAddress& peer) {
  peer.size = sizeof(peer.storage);
  UniqueFd fd(accept4(listener, peer.get(), &peer.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid() && IsShortOfDescriptors(errno)) {
    return absl::ErrnoToStatus(errno, "accepting");
  }
  return fd;
}

absl::StatusOr<UniqueFd> DialTo(const SocketAddress& address) {
  UniqueFd fd(socket(address.family(), kSocketFlags, 0));
  if (!fd.valid()) return Failed("making a socket for", address);
  if (connect(fd.get(), address.get(), address.size) != 0 && errno != EINPROGRESS) {
    return Failed("connecting to", address);
  }
  return fd;
}

void TuneSocket(int fd, absl::Duration failure_timeout, size_t unsent_bytes) {
  const int silence = std::max(1, static_cast<int>(absl::ToInt64Seconds(absl::Ceil(
                                      failure_timeout / 4, absl::Seconds(1)))));
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, silence);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, silence);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(absl::ToInt64Milliseconds(failure_timeout)));
  Set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(unsent_bytes));
}

absl::Duration RoundTripOf(uint32_t min_rtt_microseconds) {
  const absl::Duration said = absl::Microseconds(min_rtt_microseconds);
  return said <= kLongestRoundTrip ? said : absl::ZeroDuration();
}

}  // namespace syncline
