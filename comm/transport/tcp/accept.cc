// Who comes in, and who of those that have proved nothing yet goes to make room.
#include <sys/epoll.h>

#include <utility>

#include "comm/transport/tcp/socket.h"
#include "comm/transport/tcp/transport.h"

namespace syncline {

void TcpLoopTransport::Accept() {
  for (size_t taken = 0; taken < options_.max_pending; ++taken) {
    SocketAddress peer;
    absl::StatusOr<UniqueFd> fd = AcceptFrom(listener_.get(), peer);
    if (!fd.ok()) return PauseAccepting();
    if (!fd->valid()) return;
    TakeIn(*std::move(fd), peer);
  }
}

void TcpLoopTransport::TakeIn(UniqueFd fd, const SocketAddress& peer) {
  if (pending_.size() >= options_.max_pending) {
    TcpConnection& first = *connections_.at(pending_.ToMakeRoom());
    Refuse(first, Refusal::kCrowded,
           absl::ResourceExhaustedError("too many connections that prove nothing"));
  }
  const Shared connection =
      Add(std::move(fd), TcpConnection::Side::kAccepted, DescribeAddress(peer));
  connection->set_channel(
      MakeChannel(TcpConnection::Side::kAccepted, connection->fd(), {}));
  pending_.Add(connection->id(), SourceOf(*peer.get()));
  Watch(*connection);
}

// No descriptor is left. What strangers hold is given back, and the rest tried later.
void TcpLoopTransport::PauseAccepting() {
  options_.log.Warning("no descriptor left for a connection (ulimit -n)");
  while (!pending_.empty()) {
    Refuse(*connections_.at(pending_.oldest()), Refusal::kCrowded,
           absl::ResourceExhaustedError("no descriptors left"));
  }
  accept_again_ = clock_.Now() + options_.failure_timeout / 100;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
}

}  // namespace syncline
