// A Transport with UCX active messages, over shared memory or RDMA, as UCX finds best
// between two peers. Small payloads travel with the header, large ones by rendezvous or
// as loans (shared_arena.h).
//
// Security: UCX trusts every peer that can reach its sockets (README.md). kHostOnly
// therefore opens none, whatever UCX_TLS says (transports.h).
//
// Thread safety: see transport.h; the calling thread becomes the loop thread.
//
//   auto transport = CreateUcxTransport({.reach = Reach::kHostOnly}, receiver);
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/log.h"
#include "comm/transport/shared_arena.h"
#include "comm/transport/transport.h"

namespace syncline {

enum class Reach {
  kHostOnly,  // shared memory only; opens no socket, peers are processes of this host
  kRdma,      // also RDMA devices, for peers on other hosts of an isolated fabric
  // All devices of the host listen, also those of TCP; for tests and measurements.
  kNetwork,
};

// Environment variables UCX_... that the user has set override the choices made here,
// except that UCX_TLS only chooses among what `reach` allows.
struct UcxOptions {
  Reach reach = Reach::kHostOnly;
  // How often UCX checks that the process behind an idle endpoint still exists. Used if
  // pidfds cannot tell: for other hosts, and in kernels or containers without pidfds.
  absl::Duration keepalive = absl::Seconds(1);
  Logger log = {};  // logs refused messages
  // The arena from which payloads are lent to processes of this host. Payloads that lie
  // in it are lent without a copy, others after one copy. Null: the transport makes its
  // own arena, which takes no memory before it is used. An arena with max_bytes = 0
  // leaves all copying to UCX.
  std::shared_ptr<SharedArena> arena = nullptr;
  // Another descriptor that ends Wait() when it is readable. -1: none.
  int also_wakes = -1;
};

// `receiver` must outlive the transport. Fails with Unavailable if UCX finds no usable
// device, and with FailedPrecondition if RDMA is requested but there is no device for it.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options,
                                                              Receiver& receiver);

}  // namespace syncline
