// One TLS handshake with a server of the control plane, to find out why gRPC's fails.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/rpc/tls.h"

namespace syncline {

struct Diagnosis {
  // A clause for people, without a full stop: "nothing listens there; check that it runs
  // and that the port is right".
  std::string cause;
  // Somebody answers, and waiting will not make the two understand each other:
  // certificates of different authorities, TLS on one side only, another protocol.
  bool is_lasting = false;
};

// `socket` is connected to `host` and has timeouts. What is wrong with the handshake, the
// server's certificate or ours; no cause when the server takes us in.
// Lasting only where the server has shown a certificate: proxies take connections and
// close them while nothing is behind.
Diagnosis ProbeTls(int socket, const std::string& host, const TlsOptions& tls);

// Whether the server answers a TLS handshake with a certificate.
bool AnswersTls(int socket, const std::string& host);

// Of what the server shows the certificate (PEM) with this fingerprint (certificate.h). That
// it is the authority of the server's own is for the next connection to find out, which
// trusts nothing else. PermissionDenied when it shows none such, Unavailable when it shows
// nothing.
absl::StatusOr<std::string> FetchAuthority(int socket, const std::string& host,
                                           const std::string& fingerprint);

inline constexpr absl::string_view kSpeaksPlainText =
    "it speaks plain text; drop --tls-*, or start it with TLS, too";

}  // namespace syncline
