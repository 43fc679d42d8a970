#include "cli/authority/join_service.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/authority/token_book.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/status.h"
#include "grpcpp/server_context.h"

namespace syncline::certs {
namespace {

// Kinds of refusal that are counted one by one; the others are counted together.
constexpr size_t kMaxKinds = 4096;
constexpr size_t kMaxIdShown = 32;

}  // namespace

grpc::Status JoinService::Certify(grpc::ServerContext* context,
                                  const v1::CertifyRequest* request,
                                  v1::CertifyReply* reply) {
  const std::string peer = context->peer();
  const absl::StatusOr<std::string> certificate =
      CertificateFor(*request, HostOfPeer(peer));
  if (!certificate.ok()) {
    Refused(*request, peer, certificate.status());
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

absl::StatusOr<std::string> JoinService::CertificateFor(const v1::CertifyRequest& request,
                                                        const std::string& host) {
  {
    absl::MutexLock lock(&mutex_);
    if (!limit_.Take(host, clock_.Now())) {
      return absl::ResourceExhaustedError(
          "this machine asks too often; try again in some seconds");
    }
  }
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

void JoinService::Refused(const v1::CertifyRequest& request, const std::string& peer,
                          const absl::Status& why) {
  const std::string reason = Printable(std::string(why.message()), 1000);
  uint64_t count = 0;
  {
    absl::MutexLock lock(&mutex_);
    const std::string kind = absl::StrCat(HostOfPeer(peer), "\n", reason);
    const bool is_counted = refused_.contains(kind) || refused_.size() < kMaxKinds;
    count = ++refused_[is_counted ? kind : "others"];
  }
  if (!std::has_single_bit(count)) return;
  const std::string id = Printable(request.token_id(), kMaxIdShown);
  options_.log.Warning(
      "refused a machine",
      {{"reason", reason}, {"token", id}, {"peer", peer}, {"refused", count}});
  options_.audit.Warning("refused", {{"what", "a machine"},
                                     {"reason", reason},
                                     {"token", id},
                                     {"peer", peer},
                                     {"refused", count}});
}

}  // namespace syncline::certs
