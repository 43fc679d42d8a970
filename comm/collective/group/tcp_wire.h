// A wire between ranks of different hosts, over comm/transport/tcp: one connection per
// pair, encrypted with a key that the group's members share.
//
// Each rank listens, and dials the ranks before it. The dialling rank proves that it has
// the group's key, and names both nonces: the random numbers of the two ranks in this
// group. So no rank talks to one of an earlier group. Nothing is parsed before that.
// Besides data a rank sends heartbeats, its current operation, failures that it found,
// and its goodbye.
//
// Thread safety: one thread at a time, except Wake().
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
  // IP address of this host for other hosts.
  std::string host = {};
  // Random number of this rank in this group.
  uint64_t nonce = 0;
  TcpSecurity security = TcpSecurity::kTls;
  absl::Duration failure_timeout = absl::Seconds(10);
};

class TcpWire final : public PeerWire, private Acceptor, private Receiver {
 public:
  // Fails with Unavailable when it cannot listen.
  static absl::StatusOr<std::unique_ptr<TcpWire>> Listen(const TcpWireOptions& options);
  // Sends all committed data and a goodbye, and waits at most F until the other hosts'
  // kernels have them.
  ~TcpWire() override;

  const std::string& address() const { return transport_->address(); }

  // Blocks until all ranks with a card are connected. Errors name the missing rank:
  // Unavailable, FailedPrecondition for a wrong key, DeadlineExceeded.
  absl::Status Connect(const std::vector<std::optional<TcpCard>>& cards,
                       const SecretKey& key, absl::Duration timeout);

  // Sends heartbeats to the connected ranks while others are awaited. Not OK when a
  // connected rank has left, is gone, or reported a failure.
  absl::Status TendMeeting();

  bool HasUnsent() const override {
    return PeerWire::HasUnsent() || transport_->HasUnsent();
  }
  void Settle() override;
  void Sleep(absl::Duration timeout) override { transport_->Wait(timeout); }
  void Wake() override { transport_->Wake(); }

  // For callers that sleep on several descriptors.
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
  absl::Duration tended_ = absl::ZeroDuration();  // time of the last TendMeeting
};

}  // namespace syncline::collective
