// Lanes between ranks of different hosts, over comm/transport/tcp: one connection for each
// pair, sealed by a key that the group's members share.
//
// Each rank listens, and dials those before it. The one that dials proves that it has the
// group's key, and says whom it takes itself and its peer for: their numbers in this group,
// drawn at random, so that nobody talks to what an earlier group left behind. Nothing is
// parsed before. Behind its data a rank sends beats, what it waits for, what it found, and
// its goodbye.
//
// Thread safety: one thread at a time, but Wake().
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/base/env.h"
#include "comm/base/secret_key.h"
#include "comm/collective/group/peer_wire.h"
#include "comm/collective/group/tcp_peer.h"
#include "comm/transport/tcp/tcp.h"

namespace syncline::collective {

struct TcpWireOptions {
  int rank = 0;
  int ranks = 1;
  // The IP address of this host by which the others reach it.
  std::string host = {};
  // This rank's number in this group; random.
  uint64_t nonce = 0;
  TcpSecurity security = TcpSecurity::kTls;
  absl::Duration failure_timeout = absl::Seconds(10);
};

class TcpWire final : public PeerWire, private Acceptor, private Receiver {
 public:
  // Unavailable when it cannot listen.
  static absl::StatusOr<std::unique_ptr<TcpWire>> Listen(const TcpWireOptions& options);
  // Sends what was committed, says goodbye, and waits for the others' hosts to have it: F
  // at most.
  ~TcpWire() override;

  const std::string& address() const { return transport_->address(); }

  // Blocks until it is connected to all that have a card. Whoever does not come is named:
  // Unavailable, FailedPrecondition for a wrong key, DeadlineExceeded.
  absl::Status Connect(const std::vector<std::optional<TcpCard>>& cards,
                       const SecretKey& key, absl::Duration timeout);

  // Beats for those that are connected already while others are awaited. Not OK when one of
  // them has left, is gone, or reported a failure.
  absl::Status TendMeeting();

  bool HasUnsent() const override {
    return PeerWire::HasUnsent() || transport_->HasUnsent();
  }
  void Settle() override;
  void Sleep(absl::Duration timeout) override { transport_->Wait(timeout); }
  void Wake() override { transport_->Wake(); }

  // For whoever sleeps on more than this.
  int fd() const { return transport_->fd(); }
  absl::Duration MaySleep() const { return transport_->MaySleep(); }

 private:
  explicit TcpWire(const TcpWireOptions& options);

  const SecretKey* FindKey(std::string_view identity) override;
  ConnectOptions OnAccepted(const std::string& identity,
                            std::unique_ptr<Endpoint> endpoint) override;
  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;
  void Pump() override { transport_->Progress(); }

  TcpPeer* PeerOf(std::string_view identity) const;
  absl::Status Dial(TcpPeer& peer);
  absl::Status CheckMissing(absl::Duration now, absl::Duration deadline) const;
  absl::Status ConnectUntil(absl::Duration deadline);

  const TcpWireOptions options_;
  const SteadyClock clock_;
  SecretKey key_;
  std::unique_ptr<TcpTransport> transport_;
  absl::Duration tended_ = absl::ZeroDuration();  // when a meeting was, last
};

}  // namespace syncline::collective
