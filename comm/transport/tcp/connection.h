// One TCP connection: a socket, the channel over it, the messages that wait to be sent,
// and the reader of incoming bytes. Used only by TcpTransport (transport.h), which
// handles time, events and all callbacks except the receiver's.
//
// Thread safety: none; the loop thread owns it.
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

  // Continues connecting and the handshake. Returns true once both are done; then Open()
  // must be called.
  absl::StatusOr<bool> Begin();
  // Starts reading; messages go to `receiver`. Copies up to `staging_bytes` of each
  // payload.
  void Open(Receiver& receiver, size_t staging_bytes);

  // Reads until nothing is left, or about `budget` bytes. Returns true if there may be
  // more.
  absl::StatusOr<bool> Read(size_t budget);
  // Sends in the same way. Appends to `done` the callbacks of messages whose memory is
  // free again.
  absl::StatusOr<bool> Write(size_t budget, absl::Duration now,
                             std::vector<SendDone>& done);
  // Time at which Write() must be called even without an event of the socket. Until then
  // enough bytes are on their way, and the others stay in the queue, where they can be
  // overtaken.
  absl::Duration look_at() const { return look_at_; }

  void Enqueue(const Traffic& traffic, SendQueue::Outgoing message, absl::Duration now);
  // Closes the socket. Appends the callbacks of unsent messages to `pending`.
  void Close(std::vector<SendDone>& pending);

  SendState send_state() const;
  // Returns the events of the socket that this connection waits for (EPOLLIN, EPOLLOUT).
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
  // Returns the totals of this connection alone.
  const TrafficCounts& traffic() const { return counts_; }
  const BytesByClass& queued_bytes() const { return queue_.queued_bytes(); }
  uint64_t moved_bytes() const { return moved_bytes_; }
  uint64_t received_bytes() const { return received_bytes_; }
  uint64_t delivered() const { return reader_ ? reader_->delivered() : 0; }

  // State that the transport keeps here.
  ConnectOptions options;
  absl::Status failure;
  uint32_t watched = 0;  // the events that epoll was told
  absl::Duration deadline = absl::InfiniteDuration();
  bool is_dirty = false;
  bool is_unread = false;  // bytes wait in the channel
  bool is_paced = false;   // the transport waits for look_at()

 private:
  // A piece that is sent next. Nothing overtakes it any more.
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
  const std::string peer_;  // its address, for messages
  Phase phase_;
  std::unique_ptr<Channel> channel_;
  std::optional<FrameReader> reader_;

  SendQueue queue_;
  std::deque<Out> out_;
  size_t out_bytes_ = 0;
  size_t front_taken_ = 0;  // bytes already taken of the first piece and its head
  SendWindow window_;       // for bytes in out_, the channel, the kernel and on the wire
  absl::Duration observed_at_ = {};
  absl::Duration look_at_ = absl::InfiniteDuration();
  bool is_blocked_ = false;
  uint64_t moved_bytes_ = 0;
  uint64_t received_bytes_ = 0;

  uint64_t accepted_bytes_ = 0;
  uint64_t completed_bytes_ = 0;  // bytes of pieces that the channel took completely
  TrafficCounts counts_;
  // Must never decrease, although encrypted bytes are more.
  mutable uint64_t gone_bytes_ = 0;
  mutable absl::Duration round_trip_ = absl::ZeroDuration();
  mutable uint64_t asked_at_ = 0;  // value of gone_bytes_ when the kernel was last asked
};

}  // namespace syncline
