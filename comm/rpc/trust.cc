#include "comm/rpc/trust.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/certificate.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/server_context.h"

namespace syncline {
namespace {

// Returns the cluster in this process's certificate, or none.
std::optional<Cluster> ClusterOf(const SubjectNames& names) {
  if (names.uris.size() != 1) return std::nullopt;
  const absl::StatusOr<Identity> own = ParseIdentityUri(names.uris[0]);
  return own.ok() ? own->cluster : std::nullopt;
}

absl::StatusOr<SubjectNames> OwnNames(const TlsOptions& tls) {
  if (tls.cert_file.empty()) return SubjectNames();
  SYNCLINE_ASSIGN_OR_RETURN(const std::string pem,
                            ReadTlsFile(tls.cert_file, "--tls-cert"));
  const CertificatePtr certificate = ParseCertificate(pem);
  return certificate == nullptr ? SubjectNames() : FactsOf(*certificate).names;
}

std::string Property(const grpc::AuthContext& context, const char* name) {
  const auto values = context.FindPropertyValues(name);
  return values.size() == 1 ? std::string(values[0].data(), values[0].size()) : "";
}

absl::Status Denied(const std::string& message) {
  return WithFailure(absl::PermissionDeniedError(message), Failure::kUsage);
}

}  // namespace

absl::StatusOr<Acquaintances> LoadAcquaintances(const TlsOptions& tls) {
  SYNCLINE_ASSIGN_OR_RETURN(const SubjectNames own, OwnNames(tls));
  Acquaintances known = {.cluster = ClusterOf(own)};
  if (tls.identities_file.empty()) return known;
  SYNCLINE_ASSIGN_OR_RETURN(const std::string text,
                            ReadTlsFile(tls.identities_file, "--identities"));
  absl::StatusOr<IdentityMap> others = ParseIdentityMap(text);
  if (!others.ok()) {
    return WithFailure(
        absl::InvalidArgumentError(absl::StrCat("--identities '", tls.identities_file,
                                                "', ", others.status().message())),
        Failure::kUsage);
  }
  known.others = *std::move(others);
  return known;
}

absl::Status CheckIsCoordinator(const SubjectNames& names, const TlsOptions& tls) {
  SYNCLINE_ASSIGN_OR_RETURN(Acquaintances known, LoadAcquaintances(tls));
  if (!known.cluster) known.cluster = ClusterOf(names);
  const absl::StatusOr<Identity> identity = Identify(names, known);
  if (!identity.ok()) {
    return Denied(absl::StrCat("its certificate ", identity.status().message()));
  }
  if (identity->role == Role::kCoordinator) return absl::OkStatus();
  return Denied(absl::StrCat("its certificate is that of the ", Describe(*identity),
                             ", not of a coordinator; check the address, and --tls-cert "
                             "there"));
}

absl::StatusOr<std::unique_ptr<Doorkeeper>> Doorkeeper::Create(const TlsOptions& tls) {
  SYNCLINE_RETURN_IF_ERROR(CheckTlsOptions(tls));
  SYNCLINE_ASSIGN_OR_RETURN(Acquaintances known, LoadAcquaintances(tls));
  if (!tls.HasTls()) return std::unique_ptr<Doorkeeper>(new Doorkeeper(tls, {}));
  SYNCLINE_ASSIGN_OR_RETURN(const SubjectNames own, OwnNames(tls));
  const absl::StatusOr<Identity> identity = Identify(own, known);
  const bool is_coordinator = identity.ok() && identity->role == Role::kCoordinator;
  if (is_coordinator) {
    return std::unique_ptr<Doorkeeper>(new Doorkeeper(tls, std::move(known)));
  }
  const std::string why = identity.ok()
                              ? absl::StrCat("is that of the ", Describe(*identity))
                              : std::string(identity.status().message());
  return WithFailure(
      absl::InvalidArgumentError(absl::StrCat(
          "clients would refuse this coordinator: --tls-cert '", tls.cert_file, "' ", why,
          "; give one of `syncline certs issue DIR --role coordinator`")),
      Failure::kUsage);
}

absl::StatusOr<Peer> Doorkeeper::PeerOf(const grpc::ServerContextBase& context) const {
  Peer peer = {.address = context.peer()};
  if (!tls_.HasTls()) return peer;
  const auto auth = context.auth_context();
  const std::string own = Property(*auth, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  const CertificatePtr certificate = ParseCertificate(own);
  if (certificate == nullptr) {
    return Denied(
        "this coordinator refuses clients without a certificate; give --tls-cert and "
        "--tls-key");
  }
  const CertificateFacts facts = FactsOf(*certificate);
  peer.serial = facts.serial;
  peer.until = facts.until;
  const std::string chain = Property(*auth, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME);
  peer.proof = std::make_shared<PeerProof>(chain.empty() ? own : chain);
  const absl::StatusOr<Identity> identity = Identify(facts.names, known_);
  if (!identity.ok()) {
    return Denied(
        absl::StrCat("the certificate of this client ", identity.status().message()));
  }
  peer.identity = *identity;
  return peer;
}

}  // namespace syncline
