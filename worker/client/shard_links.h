// A worker's connections to the shards of its job: says hello on each, counts what is on
// its way, finds the ones that are dead, and connects anew. DataPlane owns it, and so does
// the simulation.
//
// A connection is used once the shard has welcomed this worker on it. It is given up when
// the transport says that it failed, and when it is silent although the shard owes an
// answer: no message came, and by the transport's own account no byte moved in either
// direction, for Timeouts::link_silence. A shard that waits for other workers owes
// nothing; after the same silence it is asked whether it still knows this worker, so that
// a shard that can hear but not answer is found, too.
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
#include "worker/client/send_pace.h"

namespace syncline {

// Where a shard is.
struct ShardPlace {
  uint32_t shard = 0;
  uint64_t epoch = 0;  // from which on it is there
  std::string address = {};
  SecretKey key = {};  // that this worker shares with its server; may be empty
};

struct ShardLinksOptions {
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  std::vector<std::string> addresses = {};  // of the shards, in order
  // What this worker shares with the server of each shard; needed where it is not on this
  // host.
  std::vector<SecretKey> keys = {};
  // What takes the answers of a shard that come on its own connection; outlives the links.
  // Without it: the transport's receiver.
  std::function<Receiver*(uint32_t shard)> receiver_of = nullptr;
  // Of this worker's life.
  uint32_t job = 0;
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  uint64_t session_key = 0;
  Logger log = {};
};

class ShardLinks {
 public:
  // The transport outlives it.
  ShardLinks(ShardLinksOptions options, Transport& transport);

  // To all shards, for the first time; an error when an address cannot be meant.
  absl::Status Connect(absl::Duration now);

  // The shard is somewhere else: connects there. Before, the exchange was told that it was
  // replaced. Unknown shards change nothing.
  void Move(ShardPlace place, absl::Duration now);

  const Endpoint& endpoint(uint32_t shard) const { return *links_[shard].endpoint; }

  void Send(ExchangeSend send, SendDone done, absl::Duration now);

  // True when the message is a shard's welcome, and nothing for the exchange but
  // Connected(header.shard).
  bool TakeWelcome(const MessageHeader& header);
  // Whether a message in the name of `shard` may be its own. One that came on the
  // connection to a shard (`by`) is that shard's. What came to the transport's receiver
  // (`by` is empty) may be of any whose answers do not come on a connection of their own:
  // those in shared memory, where no peer is proved.
  bool MayBeFrom(uint32_t shard, std::optional<uint32_t> by) const {
    return by ? *by == shard : !links_[shard].is_two_way;
  }
  // Where the shard is, for people.
  std::string Describe(uint32_t shard) const;
  // Something came from this shard.
  void Heard(uint32_t shard) { links_[shard].has_heard = true; }

  // Tells the exchange how much may be sent.
  void OfferRoom(Exchange& exchange, absl::Duration now);

  // Some 100 times a second. Connects anew what is due, and looks for silence: then it asks
  // by what the exchange gives out, or gives the connection up.
  ExchangeOutputs Tick(Exchange& exchange, absl::Duration now);

 private:
  struct Link {
    std::unique_ptr<Endpoint> endpoint = nullptr;
    SendWindow window = {};
    SendPace pace = {};
    uint64_t number = 0;  // of the connection, from 1 on
    bool is_welcome = false;
    bool has_failed = false;
    bool has_heard = false;   // since the last look
    bool is_two_way = false;  // the connection, or the one before
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
  absl::Duration looked_at_ = absl::ZeroDuration();
  absl::Duration passed_ = absl::ZeroDuration();  // since the look before
};

}  // namespace syncline
