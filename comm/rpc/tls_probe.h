// One TLS handshake with a server of the control plane, to find out why gRPC's fails.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "comm/rpc/tls.h"

namespace syncline {

// `socket` is connected to `host` and has timeouts. What is wrong with the handshake, the
// server's certificate or ours, as DiagnoseConnection says it; empty when the server takes
// us in.
std::string ProbeTls(int socket, const std::string& host, const TlsOptions& tls);

inline constexpr absl::string_view kSpeaksPlainText =
    "it speaks plain text; drop --tls-*, or start it with TLS, too";

}  // namespace syncline
