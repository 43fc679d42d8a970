#include "comm/transport/tcp/channel.h"

#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

constexpr char kUnknownIdentity[] = "no peer of that name is expected";

msghdr MessageOf(std::span<const iovec> pieces) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // neither call writes to it
  message.msg_iovlen = pieces.size();
  return message;
}

absl::StatusOr<size_t> MovedNothing(int error, const char* doing) {
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return 0;
  return absl::ErrnoToStatus(error, doing).code() == absl::StatusCode::kUnavailable
             ? absl::ErrnoToStatus(error, doing)
             : absl::UnavailableError(
                   absl::StrCat(doing, ": ", absl::ErrnoToStatus(error, "").message()));
}

}  // namespace

absl::Status UnknownIdentity() { return absl::PermissionDeniedError(kUnknownIdentity); }

bool IsUnknownIdentity(const absl::Status& status) {
  return absl::IsPermissionDenied(status) && status.message() == kUnknownIdentity;
}

absl::StatusOr<size_t> ReceiveFrom(int fd, std::span<const iovec> into) {
  msghdr message = MessageOf(into);
  const ssize_t got = recvmsg(fd, &message, 0);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0) return absl::UnavailableError("the peer closed the connection");
  return MovedNothing(errno, "receiving");
}

absl::StatusOr<size_t> SendTo(int fd, std::span<const iovec> from) {
  const msghdr message = MessageOf(from);
  const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  return MovedNothing(errno, "sending");
}

}  // namespace syncline
