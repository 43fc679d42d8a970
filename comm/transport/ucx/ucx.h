// UCX active messages over shared memory or RDMA, whichever UCX finds best between two
// peers. Small payloads travel with the header,
// large ones by rendezvous.
//
// Security: UCX trusts whoever can reach its sockets (README.md). kHostOnly therefore
// opens none, whatever UCX_TLS says (transports.h).
//
// Thread safety: as transport.h says; the calling thread becomes the loop thread.
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
  kHostOnly,  // shared memory only: no socket is opened, peers are processes of this host
  kRdma,      // and RDMA devices, for peers on other hosts of an isolated fabric
  kNetwork,   // all devices of the host listen, TCP's too; for tests and measuring
};

// An environment variable UCX_… that the user has set wins over what is chosen here, but
// UCX_TLS only chooses among what `reach` allows.
struct UcxOptions {
  Reach reach = Reach::kHostOnly;
  // How often UCX looks whether the process behind an idle endpoint still exists, where
  // pidfds do not tell: on other hosts, and with a kernel or container without them.
  absl::Duration keepalive = absl::Seconds(1);
  Logger log = {};  // refused messages
  // Payloads for processes of this host are lent from here: what lies in it already
  // without a copy, other memory after one. Null: the transport makes its own, which
  // takes no memory before it is used. One with max_bytes = 0 leaves all copying to UCX.
  std::shared_ptr<SharedArena> arena = nullptr;
  // A descriptor of others that ends Wait() when it is readable; -1: none.
  int also_wakes = -1;
};

// `receiver` outlives the transport. Unavailable when UCX finds no usable device;
// FailedPrecondition when it is to use RDMA and has none here.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options,
                                                              Receiver& receiver);

}  // namespace syncline
