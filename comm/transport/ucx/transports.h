// Which of UCX's transports are used: what `reach` allows, and of that what the user wants.
//
// Whoever can reach a socket of UCX's can end the process (README.md). UCX_TLS is set for
// whole clusters, for MPI's sake, so it must neither open one here nor stop anybody.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/ucx/queue_memory.h"
#include "comm/transport/ucx/ucx.h"

namespace syncline {

struct TransportChoice {
  std::string tls;                   // as UCX takes it: "posix,self", "^cma,tcp,sysv"
  std::vector<std::string> ignored;  // what the user named and does not get
};

// `wanted` is the user's UCX_TLS; null: not set. `memory` is taken unless that names another.
TransportChoice ChooseTransports(Reach reach, QueueMemory memory, const char* wanted);

// Whether what UCX then has ("posix/memory", "tcp/lo", as ResourcesOf says) is what `reach`
// promises: inside a host nothing but shared memory, with kRdma a device for it and no TCP.
// The error says what to do.
absl::Status CheckResources(Reach reach, const std::vector<std::string>& resources);

}  // namespace syncline
