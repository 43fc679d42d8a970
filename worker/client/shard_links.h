// A worker's connections to the shards of its job. It sends the hello on each connection,
// counts the bytes under way, finds dead connections, and reconnects. DataPlane and the
// simulation use it.
//
// A connection is used once the shard has accepted this worker on it. It is given up when
// the transport reports a failure, or when it was silent for Timeouts::link_silence
// although the shard owes an answer. Silent means that no message arrived and that, as
// the transport counts, no byte moved in either direction. A shard that waits for other
// workers owes no answer. After the same silence it is asked whether it still knows this
// worker, which also finds a shard that can receive but not send.
//
// Thread safety: none; the transport's loop thread owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/base/log.h"
#include "comm/base/secret_key.h"
#include "comm/base/timeouts.h"
#include "comm/transport/message.h"
#include "comm/transport/send_window.h"
#include "comm/transport/transport.h"
#include "worker/client/exchange.h"
#include "worker/client/link_rates.h"
#include "worker/client/send_pace.h"

namespace syncline {

// The server that holds a shard.
struct ShardPlace {
  uint32_t shard = 0;
  uint64_t epoch = 0;  // the first epoch in which this server holds it
  std::string address = {};
  SecretKey key = {};  // shared by this worker and the server; may be empty
};

struct ShardLinksOptions {
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  std::vector<std::string> addresses = {};  // of the shards, in order
  // One key for each shard, shared with its server; required for servers on other hosts.
  std::vector<SecretKey> keys = {};
  // Returns the receiver of messages that arrive on the shard's own connection; it must
  // outlive the links. Null: the transport's receiver.
  std::function<Receiver*(uint32_t shard)> receiver_of = nullptr;
  // This worker's membership.
  uint32_t job = 0;
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  uint64_t session_key = 0;
  Logger log = {};
};

class ShardLinks {
 public:
  // `transport` must outlive it.
  ShardLinks(ShardLinksOptions options, Transport& transport);

  // Connects to all shards for the first time. An error: an address is malformed.
  absl::Status Connect(absl::Duration now);

  // Connects to the shard at its new place. Ignores unknown shards. REQUIRES: the
  // exchange was told by Replaced.
  void Move(ShardPlace place, absl::Duration now);

  const Endpoint& endpoint(uint32_t shard) const { return *links_[shard].endpoint; }

  void Send(ExchangeSend send, SendDone done, absl::Duration now);

  // Returns whether the message is a shard's welcome. Then call
  // Exchange::Connected(header.shard); the exchange does not handle the message itself.
  bool TakeWelcome(const MessageHeader& header);
  // Whether a message that names `shard` may come from it. A message on the connection to
  // a shard (`by`) comes from that shard. A message at the transport's receiver (`by` is
  // empty) may come from any shard whose answers do not use a connection of their own,
  // which are the shards in shared memory, where peers are not authenticated.
  bool MayBeFrom(uint32_t shard, std::optional<uint32_t> by) const {
    return by ? *by == shard : !links_[shard].is_two_way;
  }
  // The shard's address in words, for messages.
  std::string Describe(uint32_t shard) const;
  // Reports that a message arrived from this shard.
  void Heard(uint32_t shard) { links_[shard].has_heard = true; }

  // Tells the exchange how much may be sent.
  void OfferRoom(Exchange& exchange, absl::Duration now);

  // Returns the bytes on their way to the shard that has most of its window, over that
  // window, at the last call of OfferRoom. It may be above 1, because the last message may
  // exceed the window.
  double window_fill() const { return window_fill_; }
  // How fast bytes leave and reach this host, as far as that is known.
  const LinkRates& rates() const { return rates_; }

  // Call it about 100 times a second. Reconnects where that is due, and looks for silent
  // connections: it gives them up, or returns the exchange's question to the shard.
  ExchangeOutputs Tick(Exchange& exchange, absl::Duration now);

 private:
  struct Link {
    std::unique_ptr<Endpoint> endpoint = nullptr;
    SendWindow window = {};
    SendPace pace = {};
    uint64_t number = 0;  // of the connection, from 1 on
    bool is_welcome = false;
    bool has_failed = false;
    bool has_heard = false;   // a message arrived since the last look
    bool is_two_way = false;  // answers use this connection, or used the previous one
    uint64_t moved_bytes = 0;
    absl::Duration silent = absl::ZeroDuration();
    absl::Duration reconnect_at = absl::InfiniteDuration();
  };

  absl::Status Dial(uint32_t shard, absl::Duration now);
  void SayHello(uint32_t shard);
  PeerKey KeyFor(uint32_t shard) const;
  void GiveUp(uint32_t shard, Exchange& exchange, absl::Duration now);
  ExchangeOutputs LookForSilence(uint32_t shard, Exchange& exchange, absl::Duration now);

  ShardLinksOptions options_;
  Transport& transport_;
  std::vector<Link> links_;
  double window_fill_ = 0;
  LinkRates rates_;
  absl::Duration looked_at_ = absl::ZeroDuration();
  absl::Duration passed_ = absl::ZeroDuration();  // time between the last two looks
};

}  // namespace syncline
