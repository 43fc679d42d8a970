// A Transport moves messages between peers: a small header, and a payload of at most a
// few MiB. Messages of an endpoint arrive reliably and in order, or the endpoint fails. A
// transport knows nothing of servers or workers.
//
// Thread model: a Transport, its Endpoints and its Receiver belong to one thread, the
// loop thread. Only this thread calls their methods, except Wake(). Callbacks run on it,
// inside Progress(), and never inside Send or Connect. The loop thread usually belongs to
// a TransportLoop (loop.h).
//
// A completed send means that the local memory may be reused. It does not mean that the
// peer received the message: acknowledgements are up to the application.
//
// Implementations: inproc/ (deterministic, for tests and simulation), ucx/ (shared
// memory, RDMA), tcp/ (TCP with TLS between hosts). A new one takes a folder, a factory,
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

// Called exactly once: with OK when the memory of the send may be reused, or with an
// error if the endpoint failed or was closed before.
using SendDone = std::function<void(const absl::Status&)>;

// How much an endpoint was given to send, and how much of it has gone. Counts bytes of
// headers and payloads since it was connected; the counts never decrease.
struct SendState {
  uint64_t accepted_bytes = 0;  // bytes given to Send and SendAs
  // Bytes that have left this host, as far as the transport can tell. If it knows what
  // the peer's host has acknowledged, it counts that; otherwise it counts what was handed
  // to the network or whose send has completed. The count may grow in the middle of a
  // message. If the transport copies, it may also grow after the send completed. After a
  // failure it equals accepted_bytes.
  uint64_t gone_bytes = 0;
  // The shortest time seen between sending a byte and its acknowledgement. Zero: unknown.
  absl::Duration round_trip = absl::ZeroDuration();
  // Bytes, by class, that have not begun to be sent, so that a message of an earlier
  // class may still overtake them. Zero if the transport has no classes.
  BytesByClass queued_bytes = {};

  // Bytes on their way: a message that is sent now has to wait for them.
  uint64_t waiting_bytes() const { return accepted_bytes - gone_bytes; }
};

// A secret that two peers share before they connect.
struct PeerKey {
  std::string identity;  // name of the peer that dials; not secret
  SecretKey key;
};

// A connection to one peer, in one direction.
class Endpoint {
 public:
  // Closes the endpoint at once. Pending sends complete with Cancelled during a later
  // Progress().
  virtual ~Endpoint() = default;

  // Sends `header` (copied; at most kMessageHeaderBytes) and `payload` (not copied if the
  // transport can avoid it). Messages that are sent by this method arrive in the order in
  // which they were sent.
  virtual void Send(ByteView header, Payload payload, SendDone done) = 0;

  // Sends a message that may overtake others, or be overtaken, if the connection is slow.
  // Only messages of the same flow arrive in the order in which they were sent. Equals
  // Send if the transport has no queue, as in shared memory.
  virtual void SendAs(const Traffic& /*traffic*/, ByteView header, Payload payload,
                      SendDone done) {
    Send(header, std::move(payload), std::move(done));
  }

  // Returns how much has been sent. Cheap enough to call before each message, to see
  // whether there is room for it, and to watch whether bytes still move.
  virtual SendState send_state() const = 0;

  // Returns the bytes that the peer has sent on the same connection, those of incomplete
  // messages included; never decreases. 0 if the transport cannot say; its messages are
  // then never under way for long.
  virtual uint64_t received_bytes() const { return 0; }

  // Returns true if the peer is on this host and its memory is reached without a network.
  virtual bool IsLocal() const = 0;

  // Returns true if bytes arrive as they were sent or not at all, so that a checksum adds
  // nothing: in shared memory and on encrypted connections.
  virtual bool IsIntact() const { return IsLocal(); }

  // Returns true if the peer's answers come on this same connection, to
  // ConnectOptions::receiver. They are then known to be from this peer.
  virtual bool IsTwoWay() const { return false; }

  // Returns the lanes in use, for messages to people: "sysv", "tcp/tls",
  // "rc_mlx5/mlx5_0:1".
  virtual std::string Describe() const = 0;
};

// Receives messages. Implemented by the engine of a server and the session of a worker.
class Receiver {
 public:
  virtual ~Receiver() = default;

  // Returns the buffer for a payload of `payload_bytes`. Called with the header alone,
  // before any memory is taken. An error refuses the message: its payload is dropped, and
  // OnMessage is not called.
  virtual absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) = 0;

  // Receives a complete message. `header` is valid during the call only.
  virtual void OnMessage(ByteView header, Buffer payload) = 0;

  // Receives a complete message whose payload lies in memory that the sender shares with
  // this process; reading it in place saves a copy. The sender cannot reuse the memory
  // before the last copy of the slice is gone, on whatever thread. Unless overridden,
  // copies the payload into a buffer from Allocate() and calls OnMessage.
  virtual void OnBorrowed(ByteView header, Landed payload);
};

struct ConnectOptions {
  // Called at most once, inside Progress(), when the peer is found to be dead. From then
  // on the endpoint refuses sends. A peer that hangs is not detected here; heartbeats do
  // that.
  std::function<void(const absl::Status&)> on_failure = {};
  // Receives the peer's answers on the same connection. Null: the transport's receiver.
  // Must outlive the endpoint. If connections have one direction (see IsTwoWay),
  // everything goes to the transport's receiver.
  Receiver* receiver = nullptr;
  // Used by transports on which the dialling peer proves its identity (tcp/).
  PeerKey key = {};
};

// Why a listener refused a peer.
enum class Refusal {
  kHandshake,  // other protocol, or a wrong key
  kIdentity,   // no peer of this name is expected
  kTimeout,    // silent or too slow in the handshake
  kCrowded,    // too many unknown peers at once; the oldest is closed
  kMalformed,  // known peer, but it sent no valid message
  kUnread,     // known peer, but it does not read its answers
};

const char* RefusalName(Refusal refusal);

struct RefusedPeer {
  Refusal refusal = Refusal::kHandshake;
  std::string peer;  // "192.0.2.7:41234", or its identity if proven
  std::string why;   // explanation for messages
};

// Decides which peers may connect to this transport, and handles their connections.
// Called on the loop thread, like a Receiver.
class Acceptor {
 public:
  virtual ~Acceptor() = default;

  // Returns the key of the peer that claims to be `identity`, or null for an unknown one.
  // The call proves nothing yet: any peer can claim a name. The result is valid until the
  // next call.
  virtual const SecretKey* FindKey(std::string_view identity) = 0;

  // Accepts a peer that has proved to be `identity`. Its messages go to the receiver in
  // the returned options; this must not be null if the endpoint is kept. Destroying
  // `endpoint` closes the connection.
  virtual ConnectOptions OnAccepted(const std::string& identity,
                                    std::unique_ptr<Endpoint> endpoint) = 0;

  // Tells that a peer was refused, or that its connection was closed because of what it
  // sent. There may be many such calls.
  virtual void OnRefused(const RefusedPeer& /*refused*/) {}
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Returns opaque bytes by which others reach this transport. They travel over the
  // control plane.
  virtual const std::string& address() const = 0;

  // Connects to a peer. Fails with InvalidArgument if the address is malformed. A dead
  // peer may show only when the first message is sent.
  virtual absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const std::string& address,
                                                            ConnectOptions options) = 0;

  // Delivers messages that have arrived and completes sends. Never blocks. Returns the
  // number of events.
  virtual int Progress() = 0;

  // Sleeps until something may have arrived, Wake() is called, or `timeout` has passed.
  virtual void Wait(absl::Duration timeout) = 0;

  // Ends the current Wait(), or the next one at once. The only method that any thread may
  // call.
  virtual void Wake() = 0;

  // Returns the totals of all endpoints. Zeros if the transport has no classes.
  virtual TrafficCounts traffic() const { return {}; }
};

}  // namespace syncline
