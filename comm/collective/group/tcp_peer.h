// One other rank of a PeerWire (peer_wire.h): its connection, its lanes and its state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/collective/group/tcp_lane.h"
#include "comm/collective/group/wire.h"
#include "comm/transport/transport.h"

namespace syncline::collective {

// The address at which a rank listens, and its nonce.
struct TcpCard {
  std::string address;
  uint64_t nonce = 0;
};

inline constexpr size_t kLongestReport = 480;

// Header of each message between two ranks. Both have the same version and byte order,
// since they met through the store.
struct TcpWireMessage {
  enum Kind : uint8_t {
    kHello,     // first message in each direction
    kBytes,     // data of lane `lane`
    kConsumed,  // `number`: total consumed bytes of lane `lane`
    kBeat,      // heartbeat
    kEntered,   // the sender waits in the operation of the CallHeader that follows
    kFailed,  // the group failed with `code` because of `rank`; the error message follows
    kLeft,    // the sender leaves the group
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
  // `pool` must outlive the peer.
  TcpPeer(const TcpPeerOptions& options, BufferPool& pool);

  int rank() const { return options_.rank; }
  const TcpCard& card() const { return options_.card; }
  TcpLane& lane(size_t number) { return lanes_[number]; }

  // ---- Meeting ----
  bool has_met() const { return has_met_; }
  // Returns why the last connection ended; OK while there is one, or none yet.
  const absl::Status& gone() const { return gone_; }
  // Time from the first to the last of the recent attempts that all failed at once.
  absl::Duration refused_for() const { return dialled_at_ - dialled_first_; }
  bool MayDial(absl::Duration now, absl::Duration again) const;
  // Takes a connection over. Returns the options that make this object its receiver.
  // `endpoint` is null if the connection is yet to be dialled.
  ConnectOptions Take(std::unique_ptr<Endpoint> endpoint);
  void Dialled(std::unique_ptr<Endpoint> endpoint, absl::Duration now);
  void Close() { endpoint_ = nullptr; }

  // ---- Moving ----
  void Send(const TcpWireMessage& message, Payload payload = {});
  void Flush();  // the lanes
  bool HasUnacknowledged() const;

  // ---- What is known of it ----
  const std::optional<CallHeader>& entered() const { return entered_; }
  const absl::Status& reported() const { return reported_; }
  // Not OK when the peer has left or its connection is gone.
  absl::Status CheckThere() const;
  // Also not OK when the peer hangs.
  absl::Status CheckAlive(absl::Duration now);
  // Returns the error "rank 3 on 192.0.2.7:4711 `what`", with that rank attached.
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
