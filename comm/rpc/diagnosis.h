// Why a control address cannot be reached. gRPC only says that it is not connected; this
// makes one connection by hand, with the same TLS files, and names the cause.
//
//   if (!channel.WaitForConnected(deadline)) {
//     return UnreachableError(address, timeout, DiagnoseConnection(address, tls, limit));
//   }
//
// Thread safety: any thread. Blocks for up to `limit` in each of connecting, writing and
// reading, and for as long as the host takes to resolve a name.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "comm/rpc/tls.h"

namespace syncline {

// A clause for people, without a full stop: "nothing listens there; check that it runs and
// that the port is right". Says so when it finds nothing wrong.
std::string DiagnoseConnection(const std::string& address, const TlsOptions& tls,
                               absl::Duration limit);

}  // namespace syncline
