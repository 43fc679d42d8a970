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
  absl::StatusOr<bool> Write(size_t budget, std::vector<SendDone>& done);

  void Enqueue(ByteView header, Payload payload, SendDone done);
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
  bool has_unsent() const { return !queue_.empty() || channel_->unsent_bytes() > 0; }
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

 private:
  struct Message {
    FrameHead head;
    Payload payload;
    SendDone done;
    size_t frame_bytes;
  };
  static constexpr size_t kMaxPieces = 64;

  size_t Pieces(std::array<iovec, kMaxPieces>& pieces) const;
  void Took(size_t bytes, std::vector<SendDone>& done);
  uint64_t TakenBytes() const;
  void AskKernel() const;

  const uint64_t id_;
  UniqueFd fd_;
  const Side side_;
  const std::string peer_;  // its address, for people
  Phase phase_;
  std::unique_ptr<Channel> channel_;
  std::optional<FrameReader> reader_;

  std::deque<Message> queue_;
  size_t front_taken_ = 0;  // bytes of the first message's frame
  bool is_blocked_ = false;
  uint64_t moved_bytes_ = 0;
  uint64_t received_bytes_ = 0;

  uint64_t accepted_bytes_ = 0;
  uint64_t completed_bytes_ = 0;     // of messages that the channel took whole
  mutable uint64_t gone_bytes_ = 0;  // must never shrink, though what is sealed is longer
  mutable absl::Duration round_trip_ = absl::ZeroDuration();
  mutable uint64_t asked_at_ = 0;  // when so many bytes had gone
};

}  // namespace syncline
