// The transport that servers and workers use: shared memory between processes of one
// host, and TCP with TLS 1.3 between hosts. Another combination can be chosen
// (DataPlaneMode).
//
// The servers decide which (--data-plane), and say so in their addresses. These travel
// over the control plane, and workers use the mode that they name. There is no fallback.
//
// Thread safety: see transport.h; the calling thread becomes the loop thread.
//
//   SYNCLINE_ASSIGN_OR_RETURN(plan.mode, ModeOf(welcome.shard_addresses));
//   auto transport = CreateNetworkTransport({.plan = plan}, session);
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/log.h"
#include "comm/base/timeouts.h"
#include "comm/transport/shared_arena.h"
#include "comm/transport/transport.h"

namespace syncline {

enum class DataPlaneMode : uint8_t {
  kHost = 0,  // only shared memory: all members are on this host
  kAuto = 1,  // shared memory within a host, TCP with TLS between hosts
  kTls = 2,   // TCP with TLS, also within a host
  // TCP without authentication and encryption: for measurements and trusted networks.
  kPlain = 3,
  kRdma = 4,  // UCX's RDMA, on a fabric that is isolated or encrypted below
};

// Describes the mode, for status and logs.
std::string_view DescribeMode(DataPlaneMode mode);

// Returns true if members with these modes can talk to each other. Servers with kHost and
// with kAuto may serve the same job.
bool MayMeet(DataPlaneMode one, DataPlaneMode other);

// Returns true if bytes may change on their way, so that payloads need checksums.
bool NeedsChecksums(DataPlaneMode mode);

// The data plane that the flags of a server ask for.
struct DataPlanePlan {
  DataPlaneMode mode = DataPlaneMode::kHost;
  // For servers with TCP: the IP address to listen at, and the address by which others
  // reach it (empty: the same). Workers do not listen.
  std::string listen_host = {};
  std::string advertised_host = {};
  // Each engine takes the first free port of this range. 0: any port.
  uint16_t first_port = 0;
  uint16_t last_port = 0;
  std::string because = {};  // reason for the mode, for messages
};

struct NetworkOptions {
  DataPlanePlan plan = {};
  Acceptor* acceptor = nullptr;  // for transports that listen; must outlive the transport
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  std::shared_ptr<SharedArena> arena = nullptr;  // see UcxOptions
  Logger log = {};
};

// `receiver` must outlive the transport. Fails with Unavailable if there is no usable
// device or the transport cannot listen.
absl::StatusOr<std::unique_ptr<Transport>> CreateNetworkTransport(
    const NetworkOptions& options, Receiver& receiver);

// Returns the mode in which these addresses are reached. Fails with InvalidArgument if
// one is malformed, or if their modes cannot be combined.
absl::StatusOr<DataPlaneMode> ModeOf(std::span<const std::string> addresses);

}  // namespace syncline
