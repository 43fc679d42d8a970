#include "cli/authority/join_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/authority/renew.h"
#include "cli/authority/renewal_book.h"
#include "cli/authority/token_book.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/authorities.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/identity.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/revoked.h"
#include "comm/rpc/status.h"
#include "grpcpp/server_context.h"

namespace syncline::certs {
namespace {

constexpr size_t kMaxIdShown = 32;
constexpr size_t kMaxCertificateBytes = 8 << 10;

// The owner of a certificate that may be renewed.
struct Holder {
  Identity who;
  CertificateFacts facts;
  CertificatePtr certificate;
};

absl::Status Denied(const std::string& why) {
  return absl::PermissionDeniedError(
      absl::StrCat("this certificate ", why, "; join again with a token"));
}

absl::StatusOr<Holder> HolderOf(const std::string& pem, const Authority& authority,
                                absl::Time now) {
  Holder holder;
  if (pem.size() <= kMaxCertificateBytes) holder.certificate = ParseCertificate(pem);
  if (holder.certificate == nullptr) {
    return absl::InvalidArgumentError(
        "the certificate to renew is not a valid PEM certificate");
  }
  const absl::Status chain =
      VerifyChain(ToPem(*holder.certificate), authority.pair.certificate, now);
  if (!chain.ok()) {
    return Denied(absl::StrCat("is not valid here: ", chain.message()));
  }
  holder.facts = FactsOf(*holder.certificate);
  const auto& uris = holder.facts.names.uris;
  const absl::StatusOr<Identity> who = ParseIdentityUri(uris.size() == 1 ? uris[0] : "");
  if (!who.ok() || who->cluster != authority.cluster) {
    return Denied("belongs to no member of this cluster");
  }
  holder.who = *who;
  // A coordinator's certificate is not renewed here. Nothing checks whether it is revoked,
  // so a stolen one has to expire.
  if (holder.who.role == Role::kCoordinator) {
    return absl::PermissionDeniedError(
        "renew a coordinator's certificate on the authority's host: `syncline certs "
        "issue DIRECTORY --role coordinator --overwrite`");
  }
  return holder;
}

absl::Status CheckNotRevoked(const std::string& directory, const std::string& serial) {
  const auto contents = ReadFileIfThere(directory + "/revoked");
  if (contents.ok() && !contents->has_value()) return absl::OkStatus();
  const auto revoked = contents.ok() ? ParseRevoked(**contents) : contents.status();
  const absl::StatusOr<std::string> number = ParseSerial(serial);
  if (!revoked.ok() || !number.ok()) {
    return absl::FailedPreconditionError(
        "no certificate is renewed while the authority's list of revoked certificates is "
        "damaged");
  }
  return revoked->contains(*number) ? Denied("was revoked") : absl::OkStatus();
}

}  // namespace

grpc::Status JoinService::Certify(grpc::ServerContext* context,
                                  const v1::CertifyRequest* request,
                                  v1::CertifyReply* reply) {
  const std::string peer = context->peer();
  const absl::StatusOr<std::string> certificate =
      CertificateFor(*request, HostOfPeer(peer));
  if (!certificate.ok()) {
    Refused({"token", Printable(request->token_id(), kMaxIdShown)}, peer,
            certificate.status());
    return ToGrpcStatus(certificate.status());
  }
  const CertificateFacts facts = FactsOf(*ParseCertificate(*certificate));
  const std::string who = facts.names.uris.at(0);
  options_.log.Info("a machine joined",
                    {{"token", request->token_id()}, {"identity", who}, {"peer", peer}});
  options_.audit.Info("issued", {{"token", request->token_id()},
                                 {"identity", who},
                                 {"serial", facts.serial},
                                 {"until", Written(facts.until)},
                                 {"peer", peer}});
  reply->set_certificate(*certificate);
  return grpc::Status::OK;
}

grpc::Status JoinService::Renew(grpc::ServerContext* context,
                                const v1::RenewRequest* request,
                                v1::CertifyReply* reply) {
  const std::string peer = context->peer();
  std::string before;
  const absl::StatusOr<std::string> certificate =
      Renewed(*request, HostOfPeer(peer), &before);
  if (!certificate.ok()) {
    Refused({"serial", before}, peer, certificate.status());
    return ToGrpcStatus(certificate.status());
  }
  const CertificateFacts facts = FactsOf(*ParseCertificate(*certificate));
  const std::string who = facts.names.uris.at(0);
  options_.log.Info("a certificate was renewed", {{"identity", who}, {"peer", peer}});
  options_.audit.Info("renewed", {{"identity", who},
                                  {"serial", facts.serial},
                                  {"before", before},
                                  {"until", Written(facts.until)},
                                  {"peer", peer}});
  reply->set_certificate(*certificate);
  return grpc::Status::OK;
}

absl::StatusOr<std::string> JoinService::Renewed(const v1::RenewRequest& request,
                                                 const std::string& host,
                                                 std::string* before) {
  SYNCLINE_RETURN_IF_ERROR(Admit(host));
  const absl::Time now = absl::Now();
  SYNCLINE_ASSIGN_OR_RETURN(const Holder holder,
                            HolderOf(request.certificate(), authority_, now));
  const CertificateFacts& old = holder.facts;
  *before = old.serial;
  if (!IsSignedBy(*holder.certificate,
                  RenewalMessage(authority_.fingerprint, request.request()),
                  request.signature())) {
    return absl::PermissionDeniedError(
        "the request is not signed by the key of the certificate to renew: give the "
        "certificate and the key that belong together, or join again with a token");
  }
  SYNCLINE_RETURN_IF_ERROR(CheckNotRevoked(options_.directory, old.serial));
  Renewal renewal = {.serial = old.serial, .until = old.until, .key = {}};
  SYNCLINE_ASSIGN_OR_RETURN(renewal.key, KeyOfRequest(request.request()));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string old_key,
                            KeyOfCertificate(*holder.certificate));
  if (renewal.key == old_key) {
    return absl::InvalidArgumentError("the new certificate needs a new key");
  }
  const auto sign = [&]() -> absl::StatusOr<std::string> {
    // Checked again with the lock: it may have been revoked meanwhile.
    SYNCLINE_RETURN_IF_ERROR(CheckNotRevoked(options_.directory, old.serial));
    Wish wish = {.who = holder.who, .hosts = old.names.hosts, .validity = {}};
    wish.hosts.insert(wish.hosts.end(), old.addresses.begin(), old.addresses.end());
    wish.validity = AsLongFrom(now, old.from, old.until);
    wish.validity.until = std::min(wish.validity.until, authority_.until);
    SYNCLINE_ASSIGN_OR_RETURN(const CertificateOrder order, OrderFor(wish));
    return syncline::Certify(authority_.pair, order, request.request());
  };
  return RenewOnce(options_.directory, renewal, sign, now);
}

absl::Status JoinService::Admit(const std::string& host) {
  absl::MutexLock lock(&mutex_);
  if (limit_.Take(host, clock_.Now())) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      "too many requests from this machine; try again in a few seconds");
}

absl::StatusOr<std::string> JoinService::CertificateFor(const v1::CertifyRequest& request,
                                                        const std::string& host) {
  SYNCLINE_RETURN_IF_ERROR(Admit(host));
  const absl::Time now = absl::Now();
  TokenClaim claim = {.id = request.token_id(), .secret = request.secret()};
  SYNCLINE_RETURN_IF_ERROR(CheckToken(options_.directory, claim, now));
  SYNCLINE_ASSIGN_OR_RETURN(claim.key, KeyOfRequest(request.request()));
  SYNCLINE_ASSIGN_OR_RETURN(const TokenUse use,
                            RedeemToken(options_.directory, claim, now));
  if (!use.certificate.empty()) return use.certificate;
  Wish wish = {.who = use.terms.who, .hosts = {}, .validity = {}};
  wish.who.cluster = authority_.cluster;
  SYNCLINE_ASSIGN_OR_RETURN(wish.validity, ValidFor(use.terms.hours));
  wish.validity.until = std::min(wish.validity.until, authority_.until);
  SYNCLINE_ASSIGN_OR_RETURN(const CertificateOrder order, OrderFor(wish));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string certificate,
                            syncline::Certify(authority_.pair, order, request.request()));
  return KeepCertificate(options_.directory, claim, certificate, now);
}

void JoinService::Refused(const LogField& shown, const std::string& peer,
                          const absl::Status& why) {
  const std::string reason = Printable(std::string(why.message()), 1000);
  const uint64_t count = refused_.ToSay(absl::StrCat(HostOfPeer(peer), "\n", reason),
                                        absl::StatusCodeToString(why.code()));
  if (count == 0) return;
  options_.log.Warning("refused a machine",
                       {{"reason", reason}, shown, {"peer", peer}, {"refused", count}});
  options_.audit.Warning("refused", {{"what", "a machine"},
                                     {"reason", reason},
                                     shown,
                                     {"peer", peer},
                                     {"refused", count}});
}

}  // namespace syncline::certs
