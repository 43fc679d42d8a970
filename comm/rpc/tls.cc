#include "comm/rpc/tls.h"

#include <fstream>
#include <functional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/status.h"
#include "comm/rpc/trust.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace syncline {
namespace {

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// Reads a PEM file. An empty path gives an empty text. A set path must be readable: the
// program must never fall back to less security than requested.
absl::StatusOr<std::string> ReadPem(const std::string& path, absl::string_view flag) {
  if (path.empty()) return std::string();
  SYNCLINE_ASSIGN_OR_RETURN(std::string text, ReadTlsFile(path, flag));
  if (!absl::StrContains(text, "-----BEGIN ")) {
    return Usage(
        absl::StrCat(flag, " '", path, "' is not a PEM file; convert it with openssl"));
  }
  return text;
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
  if (!options.identities_file.empty() && !options.HasTls()) {
    return Usage("--identities says to whom certificates belong; give --tls-* as well");
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

// Checks for a client that the server is the coordinator at the dialled host.
class CoordinatorVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  CoordinatorVerifier(TlsOptions tls, std::string host)
      : tls_(std::move(tls)), host_(std::move(host)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/,
              grpc::Status* verdict) override {
    *verdict =
        ToGrpcStatus(Judge({request->peer_cert().data(), request->peer_cert().size()}));
    return true;  // decided at once
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  absl::Status Judge(const std::string& pem) const {
    const CertificatePtr certificate = ParseCertificate(pem);
    if (certificate == nullptr || !IsForHost(*certificate, host_)) {
      return absl::UnauthenticatedError("the certificate is for another host");
    }
    return CheckIsCoordinator(FactsOf(*certificate).names, tls_);
  }

  const TlsOptions tls_;
  const std::string host_;
};

// Replaced certificates are used after at most this many seconds.
constexpr unsigned kLookAgainSeconds = 1;

}  // namespace

absl::StatusOr<std::string> ReadTlsFile(const std::string& path, absl::string_view flag) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (file) return text.str();
  return Usage(
      absl::StrCat("cannot read ", flag, " '", path, "'; check path and permissions"));
}

absl::Status CheckTlsOptions(const TlsOptions& options) {
  return ReadAll(options).status();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(PemTexts pem, ReadAll(options));
  if (!options.HasTls()) return grpc::InsecureServerCredentials();
  if (pem.cert.empty() || pem.ca.empty()) {
    return Usage(
        "a server that has TLS needs all of --tls-cert, --tls-key and --tls-ca: it "
        "refuses clients without a certificate; `syncline certs init DIR` makes them");
  }
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          options.key_file, options.cert_file, options.ca_file, kLookAgainSeconds));
  tls.watch_root_certs();
  tls.watch_identity_key_cert_pairs();
  tls.set_check_call_host(false);
  tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(tls);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& options, const std::string& host) {
  SYNCLINE_ASSIGN_OR_RETURN(PemTexts pem, ReadAll(options));
  if (!options.HasTls()) return grpc::InsecureChannelCredentials();
  std::vector<grpc::experimental::IdentityKeyCertPair> own;
  if (!pem.cert.empty()) own.push_back({pem.key, pem.cert});
  grpc::experimental::TlsChannelCredentialsOptions tls;
  if (!pem.ca.empty() || !own.empty()) {
    tls.set_certificate_provider(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(pem.ca, own));
  }
  if (!pem.ca.empty()) tls.watch_root_certs();
  if (!own.empty()) tls.watch_identity_key_cert_pairs();
  tls.set_check_call_host(false);
  tls.set_certificate_verifier(
      grpc::experimental::ExternalCertificateVerifier::Create<CoordinatorVerifier>(
          options, host));
  return grpc::experimental::TlsCredentials(tls);
}

}  // namespace syncline
