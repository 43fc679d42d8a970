// What a server owes one worker on one connection: answers that wait for room to be sent,
// and questions that wait to be looked at, so that no view is encoded before it can be
// sent.
//
// Small answers are sent at once. Views leave in block order, no more than SendWindow
// allows. A view overtakes others if the next forward waits for it: all blocks in front
// of it have been sent at its version. Averages and state get the room that views leave,
// and always a small share. A connection is reliable, so each version of a block's view
// is sent over it only once, however often it is asked for, unless the worker asks with
// kFlagResend. Averages and state are sent whenever they are asked for. What a connection
// lost is asked for again on the next one, which has its own WorkerLink.
//
// Thread safety: none; the engine's thread owns it.
//
//   link.Ask(question);  // of the worker
//   link.Send(reply);    // of Shard::Apply
//   link.Pump(now, [&](const MessageHeader& question) { Run(ShardMessage{question}); });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "comm/base/limits.h"
#include "comm/transport/front.h"
#include "comm/transport/message.h"
#include "comm/transport/send_window.h"
#include "comm/transport/transport.h"
#include "server/shard/shard.h"

namespace syncline {

class WorkerLink {
 public:
  // Room for small answers beside a window of views. A worker that reads leaves far less
  // unread.
  static constexpr uint64_t kMaxUnreadBytes = 4 * uint64_t{kDefaultWindowBytes};

  struct Parts {
    std::shared_ptr<Endpoint> endpoint = nullptr;
    uint64_t number = 0;  // tells this connection from the worker's others
    // Is told what was delivered, if it still exists.
    std::weak_ptr<Shard> shard = {};
    // Called when a view has been sent, so that there may be room for more. May be called
    // after the link is destroyed.
    std::function<void()> sent = nullptr;
    // A worker that leaves more than this unread counts as clogged.
    uint64_t most_unread_bytes = kMaxUnreadBytes;
  };
  explicit WorkerLink(Parts parts) : parts_(std::move(parts)) {}

  uint64_t number() const { return parts_.number; }
  const Endpoint& endpoint() const { return *parts_.endpoint; }

  // Answers a kHello: the one that began the connection, or a repetition of it.
  void Welcome(const MessageHeader& hello);
  bool WasWelcomed(const MessageHeader& hello) const { return welcomed_ == hello.step; }

  // Sends the answer, or queues it until its turn. Returns false if the connection has
  // carried it before.
  bool Send(const ShardReply& reply);

  // Takes a kPull, kPullAverage or kPullState. It waits for its turn. If its answer waits
  // already, or a kPull's answer was sent before, the worker is only told so.
  void Ask(const MessageHeader& question);

  // Sends what there is room for. `look` makes the shard answer a question through Send.
  void Pump(absl::Duration now, absl::FunctionRef<void(const MessageHeader&)> look);

  bool is_waiting() const { return !queue_.empty(); }
  // Returns whether the worker sends but does not read the answers.
  bool IsClogged();

  // Returns the bytes on their way to the worker, over the most that there may be. It may
  // be above 1, because the last message may exceed the window.
  double window_fill() const;

  // Returns the bytes that crossed the connection, both ways, since the last call.
  uint64_t TakeCrossedBytes();

 private:
  using Key = std::pair<MessageKind, uint32_t>;  // kind of the answer, and block
  using Waiting = std::variant<ShardReply, MessageHeader>;

  static Key KeyOf(const MessageHeader& header);
  static std::pair<Key, uint32_t> ArrayOf(const MessageHeader& header);
  bool WasSent(const MessageHeader& header) const;
  void Transmit(const ShardReply& reply);
  void Answer(MessageKind kind, const MessageHeader& question);
  void Note(const MessageHeader& question);

  TrafficClass ClassOf(const MessageHeader& header) const;
  bool HasRoom(TrafficClass traffic_class, absl::Duration now);
  // Returns what may be sent or looked at now; the queue's end if nothing may.
  std::map<Key, Waiting>::iterator Next(absl::Duration now);

  const Parts parts_;
  SendWindow window_;
  std::map<Key, Waiting> queue_;
  // 1 + the version that was sent. `sent_`: views, by block. `sent_aside_`: averages and
  // state, by array.
  std::unordered_map<uint32_t, uint64_t> sent_;
  std::map<std::pair<Key, uint32_t>, uint64_t> sent_aside_;
  Front front_;                       // of versions
  std::optional<uint64_t> welcomed_;  // number of the hello
  uint64_t crossed_ = 0;
  // Upper bound for the unread bytes, because asking the kernel costs a system call.
  uint64_t unread_at_most_ = 0;
  bool is_pumping_ = false;
};

}  // namespace syncline
