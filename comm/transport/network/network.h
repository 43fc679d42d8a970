// The transport of production: shared memory between processes of one host, TCP with TLS
// 1.3 between hosts; or one of the others, on purpose.
//
// Which one it is the servers decide (--data-plane) and say with their addresses; these
// travel over the control plane, and workers do as they say. Nothing falls back.
//
// Thread safety: as transport.h says; the calling thread becomes the loop thread.
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
  kHost = 0,   // shared memory alone: all members are on this host
  kAuto = 1,   // shared memory within a host, TCP with TLS between hosts
  kTls = 2,    // TCP with TLS, also within a host
  kPlain = 3,  // TCP that proves and seals nothing: measuring, trusted networks
  kRdma = 4,   // UCX's RDMA, on a fabric that is isolated or sealed below
};

// How `mode` carries messages, for status and logs.
std::string_view DescribeMode(DataPlaneMode mode);

// Whether those of one mode can talk to those of the other: a server that says that all
// members are on this host, and one that does not, may serve one job.
bool MayMeet(DataPlaneMode one, DataPlaneMode other);

// Whether bytes may change on their way, so that payloads need checksums.
bool NeedsChecksums(DataPlaneMode mode);

// What the flags of a server decide.
struct DataPlanePlan {
  DataPlaneMode mode = DataPlaneMode::kHost;
  // Of servers with TCP: an IP address to listen at, and the one by which others reach
  // it (empty: the same). Workers listen nowhere.
  std::string listen_host = {};
  std::string advertised_host = {};
  // Engines take the first free port of these; 0: any.
  uint16_t first_port = 0;
  uint16_t last_port = 0;
  std::string because = {};  // why this mode, for people
};

struct NetworkOptions {
  DataPlanePlan plan = {};
  Acceptor* acceptor = nullptr;  // of those that listen; outlives the transport
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  std::shared_ptr<SharedArena> arena = nullptr;  // see UcxOptions
  Logger log = {};
};

// `receiver` outlives the transport. Unavailable when there is no usable device, or it
// cannot listen.
absl::StatusOr<std::unique_ptr<Transport>> CreateNetworkTransport(
    const NetworkOptions& options, Receiver& receiver);

// How those at `addresses` are reached. InvalidArgument when one is no address, or they
// differ in it.
absl::StatusOr<DataPlaneMode> ModeOf(std::span<const std::string> addresses);

}  // namespace syncline
