// Why a control address cannot be reached. gRPC only says that it is not connected; this
// makes one connection by hand, with the same TLS files, and names the cause.
//
//   if (!channel.WaitForConnected(deadline)) {
//     return UnreachableError(address, timeout,
//                             DiagnoseConnection(address, tls, limit).cause);
//   }
//
// Thread safety: any thread. Blocks for up to `limit` in each of connecting, writing and
// reading, and for as long as the host takes to resolve a name.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/address.h"
#include "comm/rpc/tls.h"
#include "comm/rpc/tls_probe.h"

namespace syncline {

// Says so when it finds nothing wrong.
Diagnosis DiagnoseConnection(const std::string& address, const TlsOptions& tls,
                             absl::Duration limit);

// A connected socket, or why there is none. `limit` holds for connecting, and then for
// each read and write.
absl::StatusOr<UniqueFd> ConnectTo(const HostPort& target, absl::Duration limit);

}  // namespace syncline
