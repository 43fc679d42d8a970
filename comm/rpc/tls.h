// TLS of the control plane: mutual TLS from PEM files, or plain text.
//
// Both sides prove themselves: the server requires a client certificate signed by the CA,
// and the client checks the server's name and role (comm/rpc/trust.h says what that is).
// A client without a CA file trusts the system's CAs. Plain text is for loopback; beyond
// it a server must be told `insecure` (StartServer, comm/rpc/server.h).
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
  std::string identities_file =
      {};  // roles of certificates of other makers (--identities)

  bool HasTls() const {
    return !cert_file.empty() || !key_file.empty() || !ca_file.empty();
  }
};

// InvalidArgument when the options contradict each other, a file is missing or no PEM, a
// certificate is not valid now, or the key is another's.
absl::Status CheckTlsOptions(const TlsOptions& options);

// The contents of a file; Failure::kUsage names `flag`.
absl::StatusOr<std::string> ReadTlsFile(const std::string& path, absl::string_view flag);

// A server needs all three files. It reads them again when they change: connections made
// later show the new certificate and are judged by the new CA.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options);

// For one connection to `host`, by the files as they are now.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& options, const std::string& host);

}  // namespace syncline
