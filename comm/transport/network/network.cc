#include "comm/transport/network/network.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/transport/network/address.h"
#include "comm/transport/tcp/tcp.h"
#include "comm/transport/ucx/address.h"
#include "comm/transport/ucx/ucx.h"

namespace syncline {
namespace {

// While shared memory is busy, TCP's sockets are polled only once in this many rounds.
constexpr int kNearRoundsPerFar = 16;

bool UsesUcx(DataPlaneMode mode) {
  return mode == DataPlaneMode::kHost || mode == DataPlaneMode::kAuto ||
         mode == DataPlaneMode::kRdma;
}

bool UsesTcp(DataPlaneMode mode) {
  return mode == DataPlaneMode::kAuto || mode == DataPlaneMode::kTls ||
         mode == DataPlaneMode::kPlain;
}

// Runs up to two transports on one loop: the near one for peers that share memory with
// this process, and the far one for all others.
class NetworkTransport final : public Transport {
 public:
  explicit NetworkTransport(DataPlaneMode mode) : mode_(mode) {}

  absl::Status Open(const NetworkOptions& options, Receiver& receiver);

  const std::string& address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(const std::string& address,
                                                    ConnectOptions options) override;
  int Progress() override;
  void Wait(absl::Duration timeout) override;
  void Wake() override { near_ != nullptr ? near_->Wake() : far_->Wake(); }
  // Shared memory has no classes.
  TrafficCounts traffic() const override {
    return far_ != nullptr ? far_->traffic() : TrafficCounts();
  }

 private:
  const DataPlaneMode mode_;
  std::string address_;
  uint64_t place_ = 0;
  // Must outlive near_, which waits for its descriptor.
  std::unique_ptr<TcpTransport> far_;
  std::unique_ptr<Transport> near_;
  uint32_t near_rounds_ = 0;
};

absl::Status NetworkTransport::Open(const NetworkOptions& options, Receiver& receiver) {
  NetworkAddress address = {.mode = mode_};
  if (UsesTcp(mode_)) {
    const TcpOptions tcp = {.security = mode_ == DataPlaneMode::kPlain
                                            ? TcpSecurity::kPlain
                                            : TcpSecurity::kTls,
                            .listen_host = options.plan.listen_host,
                            .first_port = options.plan.first_port,
                            .last_port = options.plan.last_port,
                            .advertised_host = options.plan.advertised_host,
                            .acceptor = options.acceptor,
                            .failure_timeout = options.timeouts.failure_timeout,
                            .log = options.log};
    SYNCLINE_ASSIGN_OR_RETURN(far_, CreateTcpTransport(tcp, receiver));
    address.tcp = far_->address();
  }
  if (UsesUcx(mode_)) {
    const UcxOptions ucx = {
        .reach = mode_ == DataPlaneMode::kRdma ? Reach::kRdma : Reach::kHostOnly,
        .keepalive = options.timeouts.heartbeat_interval,
        .log = options.log,
        .arena = options.arena,
        .also_wakes = far_ != nullptr ? far_->fd() : -1};
    SYNCLINE_ASSIGN_OR_RETURN(near_, CreateUcxTransport(ucx, receiver));
    address.ucx = near_->address();
    SYNCLINE_ASSIGN_OR_RETURN(const UcxAddress here, ParseAddress(address.ucx));
    place_ = here.place;
  }
  address_ = EncodeNetworkAddress(address);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Endpoint>> NetworkTransport::Connect(
    const std::string& address, ConnectOptions options) {
  SYNCLINE_ASSIGN_OR_RETURN(const NetworkAddress there, ParseNetworkAddress(address));
  if (!MayMeet(there.mode, mode_)) {
    return absl::InvalidArgumentError("the peer uses a different data plane");
  }
  if (near_ != nullptr && !there.ucx.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(const UcxAddress peer, ParseAddress(there.ucx));
    const bool is_near = peer.place == place_ || mode_ == DataPlaneMode::kRdma;
    if (is_near) return near_->Connect(there.ucx, std::move(options));
  }
  if (far_ != nullptr && !there.tcp.empty()) {
    return far_->Connect(there.tcp, std::move(options));
  }
  return absl::UnavailableError(
      "the server shares no memory with this process (another host, container or user), "
      "and offers nothing else; start it with --data-plane=tls");
}

int NetworkTransport::Progress() {
  const int near_events = near_ != nullptr ? near_->Progress() : 0;
  if (far_ == nullptr) return near_events;
  if (near_events > 0 && ++near_rounds_ % kNearRoundsPerFar != 0) return near_events;
  return near_events + far_->Progress();
}

void NetworkTransport::Wait(absl::Duration timeout) {
  if (near_ == nullptr) return far_->Wait(timeout);
  if (far_ != nullptr) timeout = std::min(timeout, far_->MaySleep());
  if (timeout > absl::ZeroDuration()) near_->Wait(timeout);
}

}  // namespace

std::string_view DescribeMode(DataPlaneMode mode) {
  switch (mode) {
    case DataPlaneMode::kHost:
      return "shared memory of this host";
    case DataPlaneMode::kAuto:
      return "shared memory in a host, TLS 1.3 between hosts";
    case DataPlaneMode::kTls:
      return "TLS 1.3";
    case DataPlaneMode::kPlain:
      return "plain TCP, neither sealed nor authenticated";
    case DataPlaneMode::kRdma:
      return "RDMA, not sealed";
  }
  return "unknown";
}

bool MayMeet(DataPlaneMode one, DataPlaneMode other) {
  const auto shares_memory_first = [](DataPlaneMode mode) {
    return mode == DataPlaneMode::kHost || mode == DataPlaneMode::kAuto;
  };
  return one == other || (shares_memory_first(one) && shares_memory_first(other));
}

bool NeedsChecksums(DataPlaneMode mode) {
  return mode == DataPlaneMode::kPlain || mode == DataPlaneMode::kRdma;
}

absl::StatusOr<std::unique_ptr<Transport>> CreateNetworkTransport(
    const NetworkOptions& options, Receiver& receiver) {
  auto transport = std::make_unique<NetworkTransport>(options.plan.mode);
  SYNCLINE_RETURN_IF_ERROR(transport->Open(options, receiver));
  return transport;
}

}  // namespace syncline
