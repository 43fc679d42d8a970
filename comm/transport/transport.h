// Transport moves messages between peers: a small header and a payload of at most a few
// MiB, reliably and in order per endpoint, or the endpoint fails. It knows nothing of
// servers or workers.
//
// Thread model: a Transport, its Endpoints and its Receiver belong to one thread, the
// loop thread, which alone calls every method except Wake(). Callbacks run on it, inside
// Progress(), and never inline from Send or Connect. TransportLoop (loop.h) is the usual
// owner of that thread.
//
// A completed send means that the local memory may be reused, never that the peer
// consumed the message: acknowledgement is the application's business.
//
// Implementations: inproc/ (deterministic, for tests and simulation), ucx/ (shared
// memory, RDMA), tcp/ (TCP with TLS between hosts). A new one costs a folder, a factory,
// and a test that instantiates transport_contract.h.
//
//   auto transport = CreateUcxTransport(options, receiver);
//   auto peer = (*transport)->Connect(address_from_control_plane, {.on_failure = ...});
//   (*peer)->Send(header, payload, [](const absl::Status& status) { ... });
//   while (running) {
//     if ((*transport)->Progress() == 0) (*transport)->Wait(absl::Milliseconds(10));
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/base/secret_key.h"
#include "comm/transport/traffic.h"

namespace syncline {

// Called exactly once: OK when the memory of the send may be reused, an error when the
// endpoint failed or was closed first.
using SendDone = std::function<void(const absl::Status&)>;

// What an endpoint was given to send, and how much of it has gone: bytes of headers and
// payloads since it was connected. Both only grow.
struct SendState {
  uint64_t accepted_bytes = 0;  // by Send
  // No longer in this host's hands, as far as the transport can tell: the peer's host has
  // acknowledged them, where that is known; otherwise they left, or their send completed.
  // May grow in the middle of a message, and later than its send completes, where the
  // transport copies. All of them once the endpoint failed.
  uint64_t gone_bytes = 0;
  // The shortest that was seen between a byte and its acknowledgement; zero: unknown.
  absl::Duration round_trip = absl::ZeroDuration();
  // Not begun to be sent, by class: what a message of a class before may still overtake.
  // Zero where the transport has no classes.
  BytesByClass queued_bytes = {};

  // On their way: what a message that is sent now has to wait for.
  uint64_t waiting_bytes() const { return accepted_bytes - gone_bytes; }
};

// What two peers know before they meet, and nobody else does.
struct PeerKey {
  std::string identity;  // names the one that dials; not secret
  SecretKey key;
};

// One direction to one peer.
class Endpoint {
 public:
  // Closes by force: pending sends complete with Cancelled, on a later Progress().
  virtual ~Endpoint() = default;

  // Sends `header` (copied; at most kMessageHeaderBytes) and `payload` (not copied where
  // the transport can avoid it). Messages that are sent by this method arrive in the order
  // in which they were sent.
  virtual void Send(ByteView header, Payload payload, SendDone done) = 0;

  // The same for a message that may overtake others where the way is slow, or be
  // overtaken: only those of one flow arrive in the order in which they were sent. As Send
  // where nothing queues, in shared memory.
  virtual void SendAs(const Traffic& /*traffic*/, ByteView header, Payload payload,
                      SendDone done) {
    Send(header, std::move(payload), std::move(done));
  }

  // Cheap: a sender asks before each message whether there is room for one more, and a
  // watcher of silence, whether bytes still move.
  virtual SendState send_state() const = 0;

  // Bytes that the peer has sent on the same connection, of messages that are not whole
  // yet, too; only growing. 0 where the transport cannot say, and messages are never long
  // on their way.
  virtual uint64_t received_bytes() const { return 0; }

  // True when the peer is on this host and its memory is reached without a network.
  virtual bool IsLocal() const = 0;

  // True when bytes arrive as they were sent or not at all, so that a checksum adds
  // nothing: shared memory, sealed connections.
  virtual bool IsIntact() const { return IsLocal(); }

  // True when the peer's answers come on this very connection, to
  // ConnectOptions::receiver, so that they are known to be the peer's.
  virtual bool IsTwoWay() const { return false; }

  // The lanes in use, for humans: "sysv", "tcp/tls", "rc_mlx5/mlx5_0:1".
  virtual std::string Describe() const = 0;
};

// Takes what arrives. Implemented by the engine of a server and the session of a
// worker.
class Receiver {
 public:
  virtual ~Receiver() = default;

  // Where to land a payload of `payload_bytes`, decided from the header alone and before
  // any memory is taken. An error refuses the message: its payload is dropped and
  // OnMessage is not called.
  virtual absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) = 0;

  // A whole message. `header` is valid during the call only.
  virtual void OnMessage(ByteView header, Buffer payload) = 0;

  // A whole message whose payload's body lies in memory of the sender that this process
  // shares: reading it in place saves a copy. The sender cannot use the memory again before
  // the last copy of the slice is gone, on whatever thread. Unless overridden, copies into
  // Allocate() and calls OnMessage.
  virtual void OnBorrowed(ByteView header, Landed payload);
};

struct ConnectOptions {
  // Called at most once, inside Progress(), when the peer is found dead; the endpoint
  // refuses sends from then on. A hung peer is not found here: that is what heartbeats
  // are for.
  std::function<void(const absl::Status&)> on_failure = {};
  // Takes what the peer answers on the same connection; null: the transport's
  // receiver. Outlives the endpoint. Where connections have one direction (IsTwoWay),
  // all that arrives goes to the transport's receiver.
  Receiver* receiver = nullptr;
  // Where the transport proves who dials (tcp/).
  PeerKey key = {};
};

// Why a listener turned somebody away.
enum class Refusal {
  kHandshake,  // not our protocol, or a wrong key
  kIdentity,   // nobody of that name is expected
  kTimeout,    // silent or slow before it had proved anything
  kCrowded,    // too many strangers at once: the oldest goes
  kMalformed,  // known, but what came was no message
  kUnread,     // known, but does not read what it is answered
};

const char* RefusalName(Refusal refusal);

struct RefusedPeer {
  Refusal refusal = Refusal::kHandshake;
  std::string peer;  // "192.0.2.7:41234", or who it proved to be
  std::string why;   // for people
};

// Decides which peers may come in by connections of their own, and answers them on these.
// Called as a Receiver is.
class Acceptor {
 public:
  virtual ~Acceptor() = default;

  // The key of whoever calls itself `identity`; null for strangers. Must prove nothing
  // yet: anybody can claim a name. Valid until the next call.
  virtual const SecretKey* FindKey(std::string_view identity) = 0;

  // A peer that has proved to be `identity`. What it sends goes to the receiver that is
  // returned, never null when the endpoint is kept; destroying `endpoint` closes the
  // connection.
  virtual ConnectOptions OnAccepted(const std::string& identity,
                                    std::unique_ptr<Endpoint> endpoint) = 0;

  // Somebody was turned away, or a connection was closed for what came on it. There may be
  // many.
  virtual void OnRefused(const RefusedPeer& /*refused*/) {}
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Opaque bytes by which others reach this transport; travels over the control plane.
  virtual const std::string& address() const = 0;

  // A malformed address is InvalidArgument. A dead peer may show only on the first send.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const std::string& address,
                                                            ConnectOptions options) = 0;

  // Delivers what has arrived and completes sends. Never blocks. Returns the number of
  // events.
  virtual int Progress() = 0;

  // Sleeps until something may have arrived, Wake() was called, or `timeout` passed.
  virtual void Wait(absl::Duration timeout) = 0;

  // Ends a Wait() now or the next one at once. The one method that any thread may call.
  virtual void Wake() = 0;

  // Of all endpoints together; zeros where the transport has no classes.
  virtual TrafficCounts traffic() const { return {}; }
};

}  // namespace syncline
