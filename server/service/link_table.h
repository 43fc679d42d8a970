// The coordinator's side of all links (comm/rpc/control_link.h is the member's side):
// which streams exist, to which links they belong, and what members have not
// acknowledged.
//
// A member draws a secret key and sends it on every stream. The first hello with a key
// makes a link. The same key on a later stream, with another hello or with Resume, moves
// the link to that stream, and both sides send again what the other one has missed. A
// member without a key has a link for one stream only. A closed link stays known for a
// while, so that a member that was cut off learns why it was dropped.
//
// The table limits the streams that have not said hello, the messages kept for one
// member, and the closed links. It does not know links of an earlier coordinator process,
// and asks their members for a new hello.
//
// It does no I/O except through the streams. It borrows them: call Ended before a stream
// is destroyed. Times come from the caller.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/base/limits.h"
#include "comm/base/timeouts.h"
#include "comm/rpc/reliable_queue.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

// A stream, as links use it. The methods neither block nor call back into the table.
class LinkStream {
 public:
  virtual ~LinkStream() = default;
  virtual void Send(std::shared_ptr<const v1::CoordinatorMessage> message) = 0;
  // Ends the stream once everything sent before is written. Later calls have no effect.
  virtual void Close(const absl::Status& status) = 0;
  // Returns the owner that the stream's certificate names. A link never changes its
  // owner.
  virtual std::string owner() const { return ""; }
};

struct LinkTableOptions {
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  // After a pause of the coordinator all members may connect again at once. One
  // certificate may have that many streams (server/service/gate.h); the other half is for
  // the others.
  size_t max_silent_streams = 2 * size_t{kMaxWorkers};
  size_t max_closed_links = 4096;
  ReliableQueueLimits queue = {};
};

class LinkTable {
 public:
  // What the caller must do about a message.
  struct Arrival {
    enum Kind {
      kNothing,   // repetition, acknowledgement, or from a stream that was replaced
      kHello,     // the hello of a new link
      kReturned,  // a known link has a new stream
      kMessage,
      kRefused,  // the stream was closed with `status`
    } kind = kNothing;
    ConnectionId connection = 0;  // number of the link
    absl::Status status = {};
  };

  explicit LinkTable(const LinkTableOptions& options) : options_(options) {}

  // Sets the term of the coordinator, which all its messages carry. Call it before the
  // first stream.
  void SetTerm(uint64_t term) { term_ = term; }

  // Adds a stream. Closes it if too many streams have not said hello.
  void Began(LinkStream* stream, absl::Duration now);
  // Handles a message that has come on the stream.
  Arrival Heard(LinkStream* stream, const v1::MemberMessage& message);
  // Removes a stream. Returns the link that has no stream now, or 0 if there is none.
  ConnectionId Ended(LinkStream* stream);

  // Fails with ResourceExhausted if the member does not read. The caller should then
  // close its link.
  absl::Status Send(ConnectionId connection, v1::CoordinatorMessage message);
  // Closes a link. A member that comes back to it for a while later gets this status.
  void Close(ConnectionId connection, const absl::Status& status, absl::Duration now);
  // Closes streams that have not said hello in time, and forgets links that were closed
  // long ago.
  void Tick(absl::Duration now);
  // Ends all streams with `status`.
  void CloseAll(const absl::Status& status);

  size_t silent_streams() const { return without_hello_.size(); }
  size_t links() const { return links_.size(); }

 private:
  struct Link {
    std::string key;
    std::string owner;
    LinkStream* stream = nullptr;
    ReliableQueue<v1::CoordinatorMessage> queue;
    ReceivedNumbers received = {};
    uint64_t beat = 0;           // the latest one heard
    uint64_t stream_number = 0;  // as the member counts its streams
    bool is_closed = false;
    absl::Status end = {};  // why it was closed
    absl::Duration closed_at = {};
  };

  // Asks for a new hello, because the link is of an earlier coordinator process.
  Arrival AskForHello(LinkStream* stream);
  Arrival Greeted(LinkStream* stream, const v1::MemberMessage& message);
  Arrival Returned(ConnectionId connection, LinkStream* stream,
                   const v1::MemberMessage& message);
  Arrival Refuse(LinkStream* stream, const absl::Status& status);
  Arrival HeardOn(ConnectionId connection, const v1::MemberMessage& message);
  void Answer(Link& link) const;
  void Forget(ConnectionId connection);

  const LinkTableOptions options_;
  uint64_t term_ = 0;
  std::map<LinkStream*, absl::Duration> without_hello_;  // no hello yet; since when
  // number of its link; 0: closed or replaced
  std::map<LinkStream*, ConnectionId> streams_;
  std::map<ConnectionId, Link> links_;
  std::map<std::string, ConnectionId> by_key_;
  std::vector<ConnectionId> closed_;  // in the order of closing
  ConnectionId next_ = 1;
};

}  // namespace syncline
