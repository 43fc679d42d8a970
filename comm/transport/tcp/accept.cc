// Accepts connections, and decides which unproven ones are closed to make room.
#include <sys/epoll.h>

#include <bit>
#include <utility>

#include "comm/transport/tcp/socket.h"
#include "comm/transport/tcp/transport.h"

namespace syncline {

void TcpLoopTransport::Accept() {
  for (size_t taken = 0; taken < options_.max_pending; ++taken) {
    SocketAddress peer;
    absl::StatusOr<UniqueFd> fd = AcceptFrom(listener_.get(), peer);
    if (!fd.ok()) return MakeRoom();
    if (!fd->valid()) return;
    if (fd->get() >= options_.first_of_the_last) return PauseAccepting();
    TakeIn(*std::move(fd), peer);
  }
}

void TcpLoopTransport::TakeIn(UniqueFd fd, const SocketAddress& peer) {
  if (pending_.size() >= options_.max_pending) {
    TcpConnection& first = *connections_.at(pending_.ToMakeRoom());
    Refuse(
        first, Refusal::kCrowded,
        absl::ResourceExhaustedError("too many connections that have not authenticated"));
  }
  const Shared connection =
      Add(std::move(fd), TcpConnection::Side::kAccepted, DescribeAddress(peer));
  connection->set_channel(
      MakeChannel(TcpConnection::Side::kAccepted, connection->fd(), {}));
  pending_.Add(connection->id(), SourceOf(*peer.get()));
  Watch(*connection);
}

// No descriptor is left: closes unproven connections.
void TcpLoopTransport::MakeRoom() {
  for (const uint64_t id : pending_.ToMakeMuchRoom()) {
    Refuse(*connections_.at(id), Refusal::kCrowded,
           absl::ResourceExhaustedError("no descriptors left"));
  }
  PauseAccepting();
}

// Few descriptors are left, and connections to other servers, files and answers need
// them. Unproven connections end by their deadline (CheckDeadlines); waiting peers are
// accepted after that.
void TcpLoopTransport::PauseAccepting() {
  if (std::has_single_bit(++shortages_)) {
    options_.log.Warning("few descriptors are left: connections wait; raise ulimit -n",
                         {{"times", shortages_}});
  }
  accept_again_ = clock_.Now() + options_.failure_timeout / 100;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
}

}  // namespace syncline
