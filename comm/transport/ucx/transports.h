// Chooses which of UCX's transports are used: those that `reach` allows, and among them
// those that the user wants.
//
// A peer that can reach a socket of UCX can end this process (README.md). Clusters set
// UCX_TLS for MPI on all hosts, so it must neither open a socket here nor stop the
// program.
//
// Thread safety: functions without state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/ucx/queue_memory.h"
#include "comm/transport/ucx/ucx.h"

namespace syncline {

struct TransportChoice {
  std::string tls;                   // in UCX's form: "posix,self", "^cma,tcp,sysv"
  std::vector<std::string> ignored;  // names that the user gave and that are not used
};

// `wanted` is the user's UCX_TLS. Null: not set. `memory` applies unless the user names
// the other kind.
TransportChoice ChooseTransports(Reach reach, QueueMemory memory, const char* wanted);

// Checks what UCX then has ("posix/memory", "tcp/lo", as ResourcesOf returns it) against
// `reach`: inside a host nothing but shared memory, and with kRdma an RDMA device and no
// TCP. The error says what to do.
absl::Status CheckResources(Reach reach, const std::vector<std::string>& resources);

}  // namespace syncline
