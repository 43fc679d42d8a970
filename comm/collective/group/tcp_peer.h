// One other rank of a PeerWire (peer_wire.h): its connection, its lanes, and what is known
// of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/collective/group/tcp_lane.h"
#include "comm/collective/group/wire.h"
#include "comm/transport/transport.h"

namespace syncline::collective {

// Where another rank listens, and its number.
struct TcpCard {
  std::string address;
  uint64_t nonce = 0;
};

inline constexpr size_t kLongestReport = 480;

// In front of each message between two ranks. Both are of one version and byte order: the
// store brought them together.
struct TcpWireMessage {
  enum Kind : uint8_t {
    kHello,     // first, in each direction
    kBytes,     // of lane `lane`
    kConsumed,  // `number` bytes of lane `lane`, in all
    kBeat,      // lives
    kEntered,   // the CallHeader that follows is what the sender waits in
    kFailed,    // the group has, by `code`, because of `rank`; the message follows
    kLeft,      // goodbye
  };
  uint8_t kind = kHello;
  uint8_t lane = 0;
  uint8_t code = 0;
  uint8_t unused = 0;
  int32_t rank = -1;
  uint64_t number = 0;
};
static_assert(sizeof(TcpWireMessage) == 16);

struct TcpPeerOptions {
  int rank = 0;
  TcpCard card = {};
  absl::Duration failure_timeout = {};
  bool* touched = nullptr;
};

class TcpPeer final : public Receiver {
 public:
  // `pool` outlives the peer.
  TcpPeer(const TcpPeerOptions& options, BufferPool& pool);

  int rank() const { return options_.rank; }
  const TcpCard& card() const { return options_.card; }
  TcpLane& lane(size_t number) { return lanes_[number]; }

  // ---- Meeting ----
  bool has_met() const { return has_met_; }
  // Why the last connection ended; OK while there is one, or none yet.
  const absl::Status& gone() const { return gone_; }
  // From the first to the last of the attempts in a row that ended at once.
  absl::Duration refused_for() const { return dialled_at_ - dialled_first_; }
  bool MayDial(absl::Duration now, absl::Duration again) const;
  // For a connection: this is the receiver of what comes. `endpoint` is null before it is
  // dialled.
  ConnectOptions Take(std::unique_ptr<Endpoint> endpoint);
  void Dialled(std::unique_ptr<Endpoint> endpoint, absl::Duration now);
  void Close() { endpoint_ = nullptr; }

  // ---- Moving ----
  void Send(const TcpWireMessage& message, Payload payload = {});
  void Flush();  // of the lanes
  bool HasUnacknowledged() const;

  // ---- What is known of it ----
  const std::optional<CallHeader>& entered() const { return entered_; }
  const absl::Status& reported() const { return reported_; }
  // Not OK when it has left or its connection is gone.
  absl::Status CheckThere() const;
  // Nor when it hangs.
  absl::Status CheckAlive(absl::Duration now);
  // "rank 3 on 192.0.2.7:4711 `what`", about that rank.
  absl::Status About(absl::StatusCode code, const std::string& what) const;

 private:
  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;
  absl::Status CheckMessage(const TcpWireMessage& message, size_t payload_bytes) const;
  void OnHello();

  const TcpPeerOptions options_;
  BufferPool& pool_;
  TcpLane lanes_[2];
  std::unique_ptr<Endpoint> endpoint_;
  bool has_met_ = false;
  bool dialled_ = false;
  bool has_left_ = false;
  absl::Duration dialled_at_ = -absl::InfiniteDuration();
  absl::Duration dialled_first_ = -absl::InfiniteDuration();
  absl::Status gone_;
  absl::Status reported_;
  std::optional<CallHeader> entered_;
  Liveness liveness_;
};

}  // namespace syncline::collective
