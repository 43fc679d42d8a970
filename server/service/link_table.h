// The coordinator's half of all links (comm/rpc/control_link.h has the member's): which
// streams are there, whose they are, and what their members have not acknowledged.
//
// A member draws a secret key and shows it on every stream. The first hello with a key
// makes a link; the same key on a later stream, with another hello or Resume, gives the
// link that stream in place of its old one, and both sides say again what the other has
// missed. A member without a key has a link for one stream. A link that was closed stays
// known for a while, so that a member that was cut off learns why it was dropped.
//
// Bounded: streams that have not said hello, what is kept for one member, and links that
// were closed. A link of a former life of the coordinator is not known: its member is told
// to say hello anew. Pure but for the streams it talks to, which are borrowed: forget them with
// Ended before they go. Not thread-safe; times are those of its owner.
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

// A stream as links use it. Neither method waits, nor calls back into the table.
class LinkStream {
 public:
  virtual ~LinkStream() = default;
  virtual void Send(std::shared_ptr<const v1::CoordinatorMessage> message) = 0;
  // Ends the stream once everything sent before is written. Later calls do nothing.
  virtual void Close(const absl::Status& status) = 0;
  // Whose it is, by its certificate; a link keeps its owner.
  virtual std::string owner() const { return ""; }
};

struct LinkTableOptions {
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  // After a pause of the coordinator all members may come back at once; and one certificate,
  // which may have as many (server/service/gate.h), leaves room for the others.
  size_t max_silent_streams = 2 * size_t{kMaxWorkers};
  size_t max_closed_links = 4096;
  ReliableQueueLimits queue = {};
};

class LinkTable {
 public:
  // What a message means to the owner.
  struct Arrival {
    enum Kind {
      kNothing,   // a repetition, an acknowledgement, or from a stream that was replaced
      kHello,     // of a new link
      kReturned,  // a known link has a new stream
      kMessage,
      kRefused,  // the stream was closed with `status`
    } kind = kNothing;
    ConnectionId connection = 0;  // the link's number
    absl::Status status = {};
  };

  explicit LinkTable(const LinkTableOptions& options) : options_(options) {}

  // The coordinator's life, which all messages carry. Before the first stream.
  void SetTerm(uint64_t term) { term_ = term; }

  // A new stream. Too many that have not said hello: it is closed.
  void Began(LinkStream* stream, absl::Duration now);
  Arrival Heard(LinkStream* stream, const v1::MemberMessage& message);
  // The link that is without a stream now; 0 for a stream that was no link's.
  ConnectionId Ended(LinkStream* stream);

  // ResourceExhausted when the member does not read: then its link should be closed.
  absl::Status Send(ConnectionId connection, v1::CoordinatorMessage message);
  void Close(ConnectionId connection, const absl::Status& status, absl::Duration now);
  // Closes streams that have said nothing for too long, and forgets links that were
  // closed long ago.
  void Tick(absl::Duration now);
  // Ends all streams with this.
  void CloseAll(const absl::Status& status);

  size_t silent_streams() const { return silent_.size(); }
  size_t links() const { return links_.size(); }

 private:
  struct Link {
    std::string key;
    std::string owner;
    LinkStream* stream = nullptr;
    ReliableQueue<v1::CoordinatorMessage> queue;
    ReceivedNumbers received = {};
    uint64_t beat = 0;           // the latest one heard
    uint64_t stream_number = 0;  // by the member's count
    bool is_closed = false;
    absl::Status end = {};  // once closed
    absl::Duration closed_at = {};
  };

  // Sends what says hello anew, of a link of a former life.
  Arrival SayUnknown(LinkStream* stream);
  Arrival Greeted(LinkStream* stream, const v1::MemberMessage& message);
  Arrival Returned(ConnectionId connection, LinkStream* stream,
                   const v1::MemberMessage& message);
  Arrival Refuse(LinkStream* stream, const absl::Status& status);
  Arrival HeardOn(ConnectionId connection, const v1::MemberMessage& message);
  void Answer(Link& link) const;
  void Forget(ConnectionId connection);

  const LinkTableOptions options_;
  uint64_t term_ = 0;
  std::map<LinkStream*, absl::Duration> silent_;  // since when
  std::map<LinkStream*, ConnectionId> streams_;   // of links; 0: closed or replaced
  std::map<ConnectionId, Link> links_;
  std::map<std::string, ConnectionId> by_key_;
  std::vector<ConnectionId> closed_;  // in the order of closing
  ConnectionId next_ = 1;
};

}  // namespace syncline
