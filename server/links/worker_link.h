// What a server owes one worker on one connection: answers that wait for room on the way,
// and questions that wait to be looked at, so that no view is encoded before it can be
// sent.
//
// Small answers go at once. Views leave in block order, no more than SendWindow allows; one
// overtakes those on their way when the next forward waits for it: all in front of it have
// been sent at its version. Averages and state have what views leave, and a small share in
// any case. A connection is reliable: each version of a block's view is sent over it once,
// however often it is asked for, unless the worker asks for it anew (kFlagAnew); averages
// and state are sent whenever they are asked for. What a connection lost is asked for again
// on the next one, which has a WorkerLink of its own.
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
  // Small answers beside a window of views; far more than a worker that reads ever leaves.
  static constexpr uint64_t kMostUnreadBytes = 4 * uint64_t{kDefaultWindowBytes};

  struct Parts {
    std::shared_ptr<Endpoint> endpoint = nullptr;
    uint64_t number = 0;  // tells this connection from the worker's others
    // Is told what was delivered, if it still lives.
    std::weak_ptr<Shard> shard = {};
    // A view has been sent: there may be room for more. May be called after the link's
    // end.
    std::function<void()> sent = nullptr;
    // A worker that leaves more than this unread is clogged.
    uint64_t most_unread_bytes = kMostUnreadBytes;
  };
  explicit WorkerLink(Parts parts) : parts_(std::move(parts)) {}

  uint64_t number() const { return parts_.number; }
  const Endpoint& endpoint() const { return *parts_.endpoint; }

  // Answers a kHello: the one that began the connection, or the same again.
  void Welcome(const MessageHeader& hello);
  bool WasWelcomed(const MessageHeader& hello) const { return welcomed_ == hello.step; }

  // Sends the answer, or lets it wait for its turn. False when the connection has carried
  // it before.
  bool Send(const ShardReply& reply);

  // A kPull, kPullAverage or kPullState came. It waits for its turn; one whose answer
  // waits is only told so, and a kPull also when its answer was sent already.
  void Ask(const MessageHeader& question);

  // Sends what there is room for. `look` has the shard answer a question, by Send.
  void Pump(absl::Duration now, absl::FunctionRef<void(const MessageHeader&)> look);

  bool is_waiting() const { return !queue_.empty(); }
  // The worker sends, and does not read the answers.
  bool IsClogged();

  // Bytes that crossed the connection, both ways, since the last call.
  uint64_t TakeCrossedBytes();

 private:
  using Key = std::pair<MessageKind, uint32_t>;  // of the answer, and its block
  using Waiting = std::variant<ShardReply, MessageHeader>;

  static Key KeyOf(const MessageHeader& header);
  static std::pair<Key, uint32_t> ArrayOf(const MessageHeader& header);
  bool WasSent(const MessageHeader& header) const;
  void Transmit(const ShardReply& reply);
  void Answer(MessageKind kind, const MessageHeader& question);
  void Note(const MessageHeader& question);

  TrafficClass ClassOf(const MessageHeader& header) const;
  bool HasRoom(TrafficClass traffic_class, absl::Duration now);
  // What may be sent or looked at now; the queue's end when nothing may.
  std::map<Key, Waiting>::iterator Next(absl::Duration now);

  const Parts parts_;
  SendWindow window_;
  std::map<Key, Waiting> queue_;
  // The version, and 1, of what was sent: by block, of averages and state by array, too.
  std::unordered_map<uint32_t, uint64_t> sent_;
  std::map<std::pair<Key, uint32_t>, uint64_t> sent_aside_;
  Front front_;                       // of versions
  std::optional<uint64_t> welcomed_;  // the number of the hello
  uint64_t crossed_ = 0;
  // Of what was sent, at most so much is unread: asking the kernel costs a system call.
  uint64_t unread_at_most_ = 0;
  bool is_pumping_ = false;
};

}  // namespace syncline
