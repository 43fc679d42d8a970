// Who may talk on the control plane: mutual TLS from PEM files, or plain text.
//
// With all three files both sides prove themselves: the server requires a client
// certificate signed by the CA, and the client checks the server's name. Without a CA
// file the server still encrypts, but lets any client in, and a client trusts the
// system's CAs. Plain text is for loopback; beyond it a server must be told `insecure`
// (StartServer, comm/rpc/server.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace syncline {

struct TlsOptions {
  std::string cert_file;  // this process's certificate chain, PEM      (--tls-cert)
  std::string key_file;   // its private key, PEM                       (--tls-key)
  std::string ca_file;    // certificates that sign our peers', PEM     (--tls-ca)
  bool insecure = false;  // plain text on any interface, on purpose    (--insecure)

  bool HasTls() const {
    return !cert_file.empty() || !key_file.empty() || !ca_file.empty();
  }
};

// InvalidArgument when the options contradict each other, a file is missing or no PEM, a
// certificate is not valid now, or the key is another's.
absl::Status CheckTlsOptions(const TlsOptions& options);

// A server needs cert_file and key_file; ca_file makes client certificates mandatory.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options);

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& options);

}  // namespace syncline
