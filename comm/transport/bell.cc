#include "comm/transport/bell.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

struct BellAddress {
  explicit BellAddress(uint64_t name) {
    // A name that begins with a zero byte exists in the kernel only (unix(7), abstract
    // sockets).
    const std::string text =
        absl::StrCat("syncline-bell-", absl::Hex(name, absl::kZeroPad16));
    unix_address.sun_family = AF_UNIX;
    std::copy(text.begin(), text.end(), unix_address.sun_path + 1);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&unix_address); }

  sockaddr_un unix_address = {};
  socklen_t bytes = 0;
};

int DatagramSocket() {
  return socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bell>> Bell::Create() {
  std::random_device random;
  const uint64_t name = uint64_t{random()} << 32 | random();
  auto bell = std::unique_ptr<Bell>(new Bell(DatagramSocket(), name));
  const BellAddress address(name);
  if (bell->fd_ < 0 || bind(bell->fd_, address.get(), address.bytes) != 0) {
    return absl::ResourceExhaustedError("no socket for a bell (ulimit -n)");
  }
  return bell;
}

Bell::~Bell() {
  if (fd_ >= 0) close(fd_);
}

void Bell::Hush() {
  char ring[8];
  while (recv(fd_, ring, sizeof(ring), MSG_DONTWAIT) >= 0) {
  }
}

Ringer::Ringer() : fd_(DatagramSocket()) {}

Ringer::~Ringer() {
  if (fd_ >= 0) close(fd_);
}

void Ringer::Ring(uint64_t name) const {
  const BellAddress address(name);
  const char ring = 1;
  (void)!sendto(fd_, &ring, 1, MSG_DONTWAIT | MSG_NOSIGNAL, address.get(), address.bytes);
}

}  // namespace syncline
