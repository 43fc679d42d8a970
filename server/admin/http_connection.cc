#include "server/admin/http_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "comm/base/crowd.h"

namespace syncline {
namespace {

// Bytes that are encrypted and passed to the socket at once: several TLS records.
constexpr size_t kPieceBytes = size_t{64} << 10;

bool IsForLater() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

HttpConnection::HttpConnection(UniqueFd socket, std::unique_ptr<TlsSession> tls)
    : socket_(std::move(socket)), tls_(std::move(tls)), wants_tls_(tls_ != nullptr) {}

std::string HttpConnection::Source() const {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  auto& address = reinterpret_cast<sockaddr&>(peer);
  return getpeername(fd(), &address, &size) == 0 ? SourceOf(address) : "";
}

bool HttpConnection::Receive(std::string& received) {
  std::array<char, 2048> bytes;
  const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
  if (got < 0) return IsForLater();
  if (got == 0) return false;
  const std::string_view taken(bytes.data(), static_cast<size_t>(got));
  // HTTP methods begin with a letter, TLS records with a number below 32.
  if (std::exchange(is_first_, false) &&
      absl::ascii_isupper(static_cast<unsigned char>(taken.front()))) {
    tls_.reset();
  }
  if (tls_ == nullptr) {
    received.append(taken);
    return true;
  }
  const bool is_well = tls_->Receive(taken, received).ok();
  outgoing_ += tls_->TakeOutput();
  // Sends the answer of the handshake, or the alert that says what is wrong.
  return Flush() && is_well;
}

bool HttpConnection::Discard() {
  std::array<char, 2048> bytes;
  const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
  return got < 0 ? IsForLater() : got > 0;
}

void HttpConnection::Send(std::string bytes) {
  if (plain_sent_ == plain_.size()) {
    plain_ = std::move(bytes);
    plain_sent_ = 0;
    return;
  }
  plain_.erase(0, std::exchange(plain_sent_, 0));
  plain_ += bytes;
}

bool HttpConnection::Flush() {
  while (has_unsent()) {
    if (outgoing_.empty()) {
      const std::string_view piece =
          std::string_view(plain_).substr(plain_sent_, kPieceBytes);
      plain_sent_ += piece.size();
      if (tls_ == nullptr) {
        outgoing_ = piece;
      } else {
        if (!tls_->Send(piece).ok()) return false;
        outgoing_ = tls_->TakeOutput();
      }
    }
    const ssize_t sent =
        send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    outgoing_.erase(0, static_cast<size_t>(sent));
  }
  plain_.clear();
  plain_sent_ = 0;
  return true;
}

void HttpConnection::EndSending() {
  if (tls_ != nullptr) {
    tls_->End();
    const std::string last = tls_->TakeOutput();
    // If the socket does not take these few bytes, the peer does not need them.
    static_cast<void>(send(socket_.get(), last.data(), last.size(), MSG_NOSIGNAL));
  }
  // If the socket were closed now while the peer still sends, the connection would be
  // reset, and the peer might never see the reply.
  shutdown(socket_.get(), SHUT_WR);
}

}  // namespace syncline
