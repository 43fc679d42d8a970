// Raw sockets, and a relay that tampers with bytes. For tests only; everything runs in
// one thread, and nothing blocks.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/tcp/address.h"
#include "comm/transport/tcp/socket.h"

namespace syncline {

// A peer that sends arbitrary bytes.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address)
      : RawPeer(*DialTo(*ParseTcpAddress(address))) {}
  explicit RawPeer(UniqueFd fd) : fd_(std::move(fd)) {}
  // Connects from another address of this host.
  RawPeer(const std::string& address, const std::string& from)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    const SocketAddress own = *MakeSocketAddress(from, 0);
    const SocketAddress there = *ParseTcpAddress(address);
    is_closed_ = bind(fd_.get(), own.get(), own.size) != 0;
    (void)connect(fd_.get(), there.get(), there.size);
  }

  // Sends as much as the socket takes now. Returns false once the socket is closed.
  bool Say(const std::string& bytes) {
    unsent_ += bytes;
    const ssize_t sent =
        send(fd_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) unsent_.erase(0, static_cast<size_t>(sent));
    return sent >= 0 || errno == EAGAIN || errno == ENOTCONN;
  }
  // Returns what has arrived since the last call. Empty: nothing, or the socket is
  // closed.
  std::string Hear() {
    std::array<char, 65536> bytes;
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) is_closed_ = true;
    return got > 0 ? std::string(bytes.data(), static_cast<size_t>(got)) : std::string();
  }
  bool IsClosed() {
    Hear();
    return is_closed_;
  }
  bool closed() const { return is_closed_; }
  bool has_unsent() const { return !unsent_.empty(); }

 private:
  UniqueFd fd_;
  std::string unsent_;
  bool is_closed_ = false;
};

// A relay between a dialler, which uses address(), and `target`. Each piece of bytes from
// the dialler goes through `tamper`, which may change, hold back or repeat it.
class TamperingRelay {
 public:
  using Tamper = std::function<std::string(std::string piece)>;

  TamperingRelay(std::string target, Tamper tamper)
      : target_(std::move(target)),
        tamper_(std::move(tamper)),
        listener_(*ListenAt(*MakeSocketAddress("127.0.0.1", 0))) {}

  std::string address() const { return EncodeTcpAddress("127.0.0.1", listener_.port); }

  void Pump() {
    SocketAddress peer;
    UniqueFd fd = *AcceptFrom(listener_.fd.get(), peer);
    if (fd.valid()) {
      pairs_.push_back(
          {std::make_unique<RawPeer>(std::move(fd)), std::make_unique<RawPeer>(target_)});
    }
    for (Pair& pair : pairs_) {
      if (pair.dialler == nullptr) continue;
      const std::string up = pair.dialler->Hear();
      pair.target->Say(up.empty() ? up : tamper_(up));
      pair.dialler->Say(pair.target->Hear());
      if (pair.dialler->closed() || pair.target->closed()) pair = {};
    }
  }

 private:
  struct Pair {
    std::unique_ptr<RawPeer> dialler, target;
  };

  const std::string target_;
  const Tamper tamper_;
  const Listener listener_;
  std::vector<Pair> pairs_;
};

}  // namespace syncline
