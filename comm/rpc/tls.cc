#include "comm/rpc/tls.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/certificate.h"

namespace syncline {
namespace {

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// The text of a PEM file. An unset path is an empty text; a set one must be readable:
// falling back to less security than was asked for is never right.
absl::StatusOr<std::string> ReadPem(const std::string& path, absl::string_view flag) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    return Usage(
        absl::StrCat("cannot read ", flag, " '", path, "'; check path and permissions"));
  }
  if (!absl::StrContains(text.str(), "-----BEGIN ")) {
    return Usage(
        absl::StrCat(flag, " '", path, "' is no PEM file; convert it with openssl"));
  }
  return text.str();
}

struct PemTexts {
  std::string cert;
  std::string key;
  std::string ca;
};

absl::StatusOr<PemTexts> ReadAll(const TlsOptions& options) {
  if (options.insecure && options.HasTls()) {
    return Usage("--insecure and --tls-* exclude each other; drop one of them");
  }
  if (options.cert_file.empty() != options.key_file.empty()) {
    return Usage("--tls-cert and --tls-key belong together; give both");
  }
  PemTexts pem;
  SYNCLINE_ASSIGN_OR_RETURN(pem.cert, ReadPem(options.cert_file, "--tls-cert"));
  SYNCLINE_ASSIGN_OR_RETURN(pem.key, ReadPem(options.key_file, "--tls-key"));
  SYNCLINE_ASSIGN_OR_RETURN(pem.ca, ReadPem(options.ca_file, "--tls-ca"));
  const absl::Time now = absl::Now();
  if (!pem.cert.empty()) {
    SYNCLINE_RETURN_IF_ERROR(CheckIdentity({"--tls-cert", options.cert_file, pem.cert},
                                           {"--tls-key", options.key_file, pem.key},
                                           now));
  }
  if (!pem.ca.empty()) {
    SYNCLINE_RETURN_IF_ERROR(
        CheckAuthorities({"--tls-ca", options.ca_file, pem.ca}, now));
  }
  return pem;
}

}  // namespace

absl::Status CheckTlsOptions(const TlsOptions& options) {
  return ReadAll(options).status();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(PemTexts pem, ReadAll(options));
  if (!options.HasTls()) return grpc::InsecureServerCredentials();
  if (pem.cert.empty())
    return Usage("a server with --tls-ca also needs --tls-cert and --tls-key");
  grpc::SslServerCredentialsOptions ssl(
      pem.ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                     : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = pem.ca;
  ssl.pem_key_cert_pairs.push_back({pem.key, pem.cert});
  return grpc::SslServerCredentials(ssl);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(PemTexts pem, ReadAll(options));
  if (!options.HasTls()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = pem.ca;
  ssl.pem_private_key = pem.key;
  ssl.pem_cert_chain = pem.cert;
  return grpc::SslCredentials(ssl);
}

}  // namespace syncline
