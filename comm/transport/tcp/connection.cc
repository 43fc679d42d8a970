#include "comm/transport/tcp/connection.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "comm/transport/tcp/socket.h"

namespace syncline {

TcpConnection::TcpConnection(uint64_t id, UniqueFd fd, Side side, std::string peer)
    : id_(id),
      fd_(std::move(fd)),
      side_(side),
      peer_(std::move(peer)),
      phase_(side == Side::kDialled ? Phase::kDialling : Phase::kHandshaking) {}

absl::StatusOr<bool> TcpConnection::Begin() {
  if (phase_ == Phase::kDialling) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      return absl::UnavailableError(absl::StrCat(
          "connecting to ", peer_, ": ", absl::ErrnoToStatus(error, "").message()));
    }
    phase_ = Phase::kHandshaking;
  }
  return channel_->Handshake();
}

void TcpConnection::Open(Receiver& receiver, size_t staging_bytes) {
  phase_ = Phase::kOpen;
  reader_.emplace(receiver, staging_bytes);
}

absl::StatusOr<bool> TcpConnection::Read(size_t budget) {
  size_t read = 0;
  while (phase_ == Phase::kOpen) {
    const std::array<iovec, 2> space = reader_->Space();
    const size_t pieces = space[1].iov_len > 0 ? 2 : 1;
    SYNCLINE_ASSIGN_OR_RETURN(const size_t got,
                              channel_->Read(std::span(space).first(pieces)));
    if (got == 0) return false;
    read += got;
    moved_bytes_ += got;
    received_bytes_ += got;
    SYNCLINE_RETURN_IF_ERROR(reader_->Advance(got));
    if (read >= budget) return true;
  }
  return false;
}

// The first messages, from where the channel stopped taking.
size_t TcpConnection::Pieces(std::array<iovec, kMaxPieces>& pieces) const {
  size_t count = 0;
  size_t skip = front_taken_;
  const auto add = [&](const std::byte* data, size_t size) {
    const size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (size == skipped || count == kMaxPieces) return;
    // sendmsg does not write; its type is older than const.
    pieces[count++] = {const_cast<std::byte*>(data) + skipped, size - skipped};
  };
  for (const Message& message : queue_) {
    if (count == kMaxPieces) break;
    add(message.head.bytes.data(), message.head.size);
    for (const Slice& slice : message.payload) add(slice.data, slice.size);
  }
  return count;
}

void TcpConnection::Took(size_t bytes, std::vector<SendDone>& done) {
  front_taken_ += bytes;
  moved_bytes_ += bytes;
  while (!queue_.empty() && front_taken_ >= queue_.front().frame_bytes) {
    Message& message = queue_.front();
    front_taken_ -= message.frame_bytes;
    completed_bytes_ += message.frame_bytes - sizeof(FramePrefix);
    done.push_back(std::move(message.done));
    queue_.pop_front();
  }
}

absl::StatusOr<bool> TcpConnection::Write(size_t budget, std::vector<SendDone>& done) {
  is_blocked_ = false;
  size_t written = 0;
  std::array<iovec, kMaxPieces> pieces;
  while (const size_t count = Pieces(pieces)) {
    if (written >= budget) return true;
    SYNCLINE_ASSIGN_OR_RETURN(const size_t taken,
                              channel_->Write(std::span(pieces).first(count)));
    is_blocked_ = taken == 0;
    if (is_blocked_) return false;
    written += taken;
    Took(taken, done);
  }
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_flushed, channel_->Flush());
  is_blocked_ = !is_flushed;
  return false;
}

void TcpConnection::Enqueue(ByteView header, Payload payload, SendDone done) {
  const size_t payload_bytes = PayloadBytes(payload);
  accepted_bytes_ += header.size() + payload_bytes;
  const FrameHead head(header, payload_bytes);
  queue_.push_back(
      {head, std::move(payload), std::move(done), head.size + payload_bytes});
}

void TcpConnection::Close(std::vector<SendDone>& pending) {
  phase_ = Phase::kClosed;
  fd_.reset();
  if (reader_) reader_->Stop();
  for (Message& message : queue_) pending.push_back(std::move(message.done));
  queue_.clear();
}

uint64_t TcpConnection::TakenBytes() const {
  const size_t prefix = std::min(front_taken_, sizeof(FramePrefix));
  return completed_bytes_ + front_taken_ - prefix;
}

SendState TcpConnection::send_state() const {
  if (phase_ == Phase::kClosed) return {accepted_bytes_, accepted_bytes_};
  if (gone_bytes_ < accepted_bytes_) {
    int in_kernel = 0;
    if (ioctl(fd_.get(), SIOCOUTQ, &in_kernel) != 0) in_kernel = 0;
    const uint64_t held = channel_->unsent_bytes() + static_cast<uint64_t>(in_kernel);
    const uint64_t taken = TakenBytes();
    gone_bytes_ = std::max(gone_bytes_, taken - std::min(taken, held));
    AskKernel();
  }
  return {accepted_bytes_, gone_bytes_, round_trip_};
}

// The kernel has measured it since early in the connection's life; it seldom changes.
void TcpConnection::AskKernel() const {
  constexpr uint64_t kEveryBytes = uint64_t{1} << 20;
  if (round_trip_ > absl::ZeroDuration() && gone_bytes_ < asked_at_ + kEveryBytes) return;
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  asked_at_ = gone_bytes_;
  round_trip_ = RoundTripOf(info.tcpi_min_rtt);
}

uint32_t TcpConnection::Interest() const {
  if (phase_ == Phase::kClosed) return 0;
  if (phase_ == Phase::kDialling) return EPOLLOUT;
  const bool waits = is_blocked_ || (phase_ != Phase::kOpen && channel_->unsent_bytes());
  return waits ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

}  // namespace syncline
