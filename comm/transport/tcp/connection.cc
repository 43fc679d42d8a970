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
namespace {

// Bytes that the channel is given at once if the link is fast.
constexpr size_t kBatchBytes = size_t{256} << 10;
// Shorter idle times do not affect the measured bandwidth.
constexpr absl::Duration kObserveEvery = absl::Milliseconds(1);
// The last bytes may be acknowledged late. This does not mean that the link is slow.
constexpr uint64_t kTailBytes = 4096;
// Limits of the wait for room in the window, which is a quarter of a piece's time.
constexpr absl::Duration kShortestLook = absl::Microseconds(500);
constexpr absl::Duration kLongestLook = absl::Milliseconds(5);

}  // namespace

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

// Moves pieces from the queue to out_. Only as many as keep the link busy: nothing
// overtakes them from then on. Control messages are small and go at once.
void TcpConnection::Commit(absl::Duration now) {
  if (queue_.empty()) return;
  SendState in_hands = InHands();
  window_.Observe(in_hands, now);
  observed_at_ = now;
  while (!queue_.empty() && out_.size() < kMaxPieces && out_bytes_ < kBatchBytes) {
    if (!queue_.has_control() && !window_.HasRoomInHands(in_hands)) return;
    SendQueue::Piece piece = queue_.Pop(window_.piece_bytes());
    in_hands.accepted_bytes += piece.bytes();
    const FrameHead head =
        piece.begins ? FrameHead(piece.traffic_class, piece.header(),
                                 piece.message_payload_bytes, piece.payload_bytes)
                     : FrameHead(piece.traffic_class, piece.payload_bytes);
    out_.push_back({head, std::move(piece)});
    out_bytes_ += out_.back().bytes();
  }
}

// Collects the first pieces, from the byte at which the channel stopped taking.
size_t TcpConnection::Pieces(std::array<iovec, kMaxPieces>& pieces) const {
  size_t count = 0;
  size_t skip = front_taken_;
  const auto add = [&](const std::byte* data, size_t size) {
    const size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (size == skipped || count == kMaxPieces) return;
    // sendmsg does not write to it; iovec just has no const version.
    pieces[count++] = {const_cast<std::byte*>(data) + skipped, size - skipped};
  };
  for (const Out& out : out_) {
    if (count == kMaxPieces) break;
    add(out.head.bytes.data(), out.head.size);
    for (const ByteView& view : out.piece.payload) add(view.data(), view.size());
  }
  return count;
}

void TcpConnection::Took(size_t bytes, absl::Duration now, std::vector<SendDone>& done) {
  front_taken_ += bytes;
  moved_bytes_ += bytes;
  while (!out_.empty() && front_taken_ >= out_.front().bytes()) {
    SendQueue::Piece& piece = out_.front().piece;
    const auto lane = static_cast<size_t>(piece.traffic_class);
    front_taken_ -= out_.front().bytes();
    out_bytes_ -= out_.front().bytes();
    completed_bytes_ += piece.bytes();
    counts_.sent_bytes[lane] += piece.bytes();
    if (piece.ended) {
      ++counts_.messages[lane];
      counts_.waited_seconds[lane] += absl::ToDoubleSeconds(now - piece.ended->pushed_at);
      done.push_back(std::move(piece.ended->done));
    }
    out_.pop_front();
  }
}

absl::StatusOr<bool> TcpConnection::Write(size_t budget, absl::Duration now,
                                          std::vector<SendDone>& done) {
  is_blocked_ = false;
  look_at_ = absl::InfiniteDuration();
  size_t written = 0;
  std::array<iovec, kMaxPieces> pieces;
  for (;;) {
    Commit(now);
    const size_t count = Pieces(pieces);
    if (count == 0) break;
    if (written >= budget) return true;
    SYNCLINE_ASSIGN_OR_RETURN(const size_t taken,
                              channel_->Write(std::span(pieces).first(count)));
    is_blocked_ = taken == 0;
    if (is_blocked_) return false;
    written += taken;
    Took(taken, now, done);
  }
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_flushed, channel_->Flush());
  is_blocked_ = !is_flushed;
  if (queue_.empty()) return false;
  // The kernel gives no event when the window has room again.
  const double rate = window_.bytes_per_second();
  const double seconds =
      rate > 0 ? static_cast<double>(window_.piece_bytes()) / rate / 4 : 0;
  look_at_ = now + std::clamp(absl::Seconds(seconds), kShortestLook, kLongestLook);
  return false;
}

void TcpConnection::Enqueue(const Traffic& traffic, SendQueue::Outgoing message,
                            absl::Duration now) {
  // Notices first whether everything under way has gone, before there is something new.
  if (window_.bytes_per_second() > 0 && now - observed_at_ >= kObserveEvery) {
    window_.Observe(InHands(), now);
    observed_at_ = now;
  }
  accepted_bytes_ += message.header.size() + PayloadBytes(message.payload);
  queue_.Push(traffic, std::move(message), now);
}

void TcpConnection::Close(std::vector<SendDone>& pending) {
  phase_ = Phase::kClosed;
  fd_.reset();
  if (reader_) reader_->Stop();
  for (Out& out : out_) {
    if (out.piece.ended) pending.push_back(std::move(out.piece.ended->done));
  }
  out_.clear();
  queue_.Clear(pending);
}

uint64_t TcpConnection::TakenBytes() const {
  if (out_.empty()) return completed_bytes_;
  // The bytes of frame heads do not count.
  const size_t frames = out_.front().bytes() - out_.front().piece.bytes();
  return completed_bytes_ + front_taken_ - std::min(front_taken_, frames);
}

// Returns the state without the bytes that can still be overtaken.
SendState TcpConnection::InHands() const {
  SendState state = send_state();
  state.accepted_bytes -= queue_.total_queued_bytes();
  if (state.waiting_bytes() <= kTailBytes) state.accepted_bytes = state.gone_bytes;
  return state;
}

SendState TcpConnection::send_state() const {
  if (phase_ == Phase::kClosed) return {accepted_bytes_, accepted_bytes_};
  if (gone_bytes_ < accepted_bytes_ - queue_.total_queued_bytes()) {
    int in_kernel = 0;
    if (ioctl(fd_.get(), SIOCOUTQ, &in_kernel) != 0) in_kernel = 0;
    const uint64_t held = channel_->unsent_bytes() + static_cast<uint64_t>(in_kernel);
    const uint64_t taken = TakenBytes();
    gone_bytes_ = std::max(gone_bytes_, taken - std::min(taken, held));
    AskKernel();
  }
  return {accepted_bytes_, gone_bytes_, round_trip_, queue_.queued_bytes()};
}

// Asks for the round trip. The kernel measures it from early in the connection's life,
// and it seldom changes.
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
