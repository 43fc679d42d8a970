// Performs one TLS handshake with a server of the control plane, to find out why gRPC's
// fails.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/rpc/tls.h"

namespace syncline {

struct Diagnosis {
  // A clause for messages, without a full stop: "nothing listens there; check that it
  // runs and that the port is right".
  std::string cause;
  // The peer answers, and waiting cannot help: certificates of different authorities, TLS
  // on one side only, another protocol.
  bool is_lasting = false;
};

// Returns what is wrong with the handshake, the server's certificate or ours; an empty
// cause when the server accepts us. `socket` is connected to `host` and has timeouts. The
// result is lasting only if the server has presented a certificate, since proxies accept
// connections and close them while there is no server behind them.
Diagnosis ProbeTls(int socket, const std::string& host, const TlsOptions& tls);

// Returns true if the server answers a TLS handshake with a certificate.
bool AnswersTls(int socket, const std::string& host);

// Returns, of the certificates that the server presents, the one with this fingerprint
// (certificate.h), as PEM. Does not verify that it signed the server's own certificate:
// the next connection does, which trusts nothing else. Fails with PermissionDenied when
// there is no such certificate, and with Unavailable when the server presents none.
absl::StatusOr<std::string> FetchAuthority(int socket, const std::string& host,
                                           const std::string& fingerprint);

inline constexpr absl::string_view kSpeaksPlainText =
    "it speaks plain text; drop --tls-*, or start it with TLS as well";

}  // namespace syncline
