// TLS of the control plane: mutual TLS from PEM files, or plain text.
//
// Both sides authenticate: the server requires a client certificate signed by the CA, and
// the client checks the server's name and role (comm/rpc/trust.h). A client without a CA
// file trusts the system's CAs. Plain text is for loopback; for other interfaces a server
// needs `insecure` (StartServer, comm/rpc/server.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace syncline {

struct TlsOptions {
  std::string cert_file;  // this process's certificate chain, PEM      (--tls-cert)
  std::string key_file;   // its private key, PEM                       (--tls-key)
  std::string ca_file;    // certificates that sign our peers', PEM     (--tls-ca)
  bool insecure = false;  // plain text on any interface, on purpose    (--insecure)
  // Roles of certificates from other authorities (--identities).
  std::string identities_file = {};

  bool HasTls() const {
    return !cert_file.empty() || !key_file.empty() || !ca_file.empty();
  }
};

// Fails with InvalidArgument when the options contradict each other, a file is missing or
// not PEM, a certificate is not valid now, or the key does not belong to it.
absl::Status CheckTlsOptions(const TlsOptions& options);

// Returns the contents of a file. Fails with Failure::kUsage, which names `flag`.
absl::StatusOr<std::string> ReadTlsFile(const std::string& path, absl::string_view flag);

// Returns the credentials of a server, which needs all three files. Reads them again when
// they change: later connections present the new certificate and are checked against the
// new CA.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options);

// Returns the credentials for one connection to `host`, from the present files.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& options, const std::string& host);

}  // namespace syncline
