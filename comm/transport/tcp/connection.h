// One TCP connection: a socket, the channel over it, what waits to be sent on it, and the
// reader of what arrives. Used by TcpTransport (transport.h) alone, which owns all time,
// events and callbacks but the receiver's.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/unique_fd.h"
#include "comm/transport/send_queue.h"
#include "comm/transport/send_window.h"
#include "comm/transport/tcp/channel.h"
#include "comm/transport/tcp/frame.h"
#include "comm/transport/transport.h"

namespace syncline {

class TcpConnection {
 public:
  enum class Phase { kDialling, kHandshaking, kOpen, kClosed };
  enum class Side { kDialled, kAccepted };

  TcpConnection(uint64_t id, UniqueFd fd, Side side, std::string peer);

  // ---- For the transport ----

  void set_channel(std::unique_ptr<Channel> channel) { channel_ = std::move(channel); }

  // Goes on connecting and shaking hands; true once the connection is open, after which
  // Open() must be called.
  absl::StatusOr<bool> Begin();
  // What arrives goes to `receiver`. Copies up to `staging_bytes` of each payload.
  void Open(Receiver& receiver, size_t staging_bytes);

  // Reads until nothing is left, or about `budget` bytes: true when more may be there.
  absl::StatusOr<bool> Read(size_t budget);
  // Sends likewise. Messages whose memory is free again go to `done`.
  absl::StatusOr<bool> Write(size_t budget, absl::Duration now,
                             std::vector<SendDone>& done);
  // When Write() has something to do though the socket says nothing: enough is on its way
  // by then, and what waits is better kept where it can be overtaken.
  absl::Duration look_at() const { return look_at_; }

  void Enqueue(const Traffic& traffic, SendQueue::Outgoing message, absl::Duration now);
  // Closes the socket. What is not sent goes to `pending`.
  void Close(std::vector<SendDone>& pending);

  SendState send_state() const;
  // What the socket must become for this connection to go on (EPOLLIN, EPOLLOUT).
  uint32_t Interest() const;

  uint64_t id() const { return id_; }
  int fd() const { return fd_.get(); }
  Phase phase() const { return phase_; }
  Side side() const { return side_; }
  const std::string& peer() const { return peer_; }
  const std::string& identity() const { return channel_->identity(); }
  bool has_unsent() const {
    return !queue_.empty() || !out_.empty() || channel_->unsent_bytes() > 0;
  }
  // Of this connection alone.
  const TrafficCounts& traffic() const { return counts_; }
  const BytesByClass& queued_bytes() const { return queue_.queued_bytes(); }
  uint64_t moved_bytes() const { return moved_bytes_; }
  uint64_t received_bytes() const { return received_bytes_; }
  uint64_t delivered() const { return reader_ ? reader_->delivered() : 0; }

  // Kept by the transport.
  ConnectOptions options;
  absl::Status failure;
  uint32_t watched = 0;  // the interest that epoll knows
  absl::Duration deadline = absl::InfiniteDuration();
  bool is_dirty = false;
  bool is_unread = false;  // bytes wait in the channel, not in the socket
  bool is_paced = false;   // waits for look_at()

 private:
  // A piece that goes out next: nothing overtakes it any more.
  struct Out {
    FrameHead head;
    SendQueue::Piece piece;

    size_t bytes() const { return head.size + piece.payload_bytes; }
  };
  static constexpr size_t kMaxPieces = 64;

  void Commit(absl::Duration now);
  size_t Pieces(std::array<iovec, kMaxPieces>& pieces) const;
  void Took(size_t bytes, absl::Duration now, std::vector<SendDone>& done);
  uint64_t TakenBytes() const;
  SendState InHands() const;
  void AskKernel() const;

  const uint64_t id_;
  UniqueFd fd_;
  const Side side_;
  const std::string peer_;  // its address, for people
  Phase phase_;
  std::unique_ptr<Channel> channel_;
  std::optional<FrameReader> reader_;

  SendQueue queue_;
  std::deque<Out> out_;
  size_t out_bytes_ = 0;
  size_t front_taken_ = 0;  // bytes of the first piece, with its head
  SendWindow window_;       // of what is in out_, the channel, the kernel and on the wire
  absl::Duration observed_at_ = {};
  absl::Duration look_at_ = absl::InfiniteDuration();
  bool is_blocked_ = false;
  uint64_t moved_bytes_ = 0;
  uint64_t received_bytes_ = 0;

  uint64_t accepted_bytes_ = 0;
  uint64_t completed_bytes_ = 0;  // of pieces that the channel took whole
  TrafficCounts counts_;
  mutable uint64_t gone_bytes_ = 0;  // must never shrink, though what is sealed is longer
  mutable absl::Duration round_trip_ = absl::ZeroDuration();
  mutable uint64_t asked_at_ = 0;  // when so many bytes had gone
};

}  // namespace syncline
