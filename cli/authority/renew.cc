#include "cli/authority/renew.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/authority/answer.h"
#include "cli/authority/directory.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/announcement.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/join_channel.h"
#include "comm/rpc/join_token.h"
#include "comm/rpc/status.h"
#include "proto/join.grpc.pb.h"

namespace syncline::certs {
namespace {

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// The one of an attempt that was not finished, or a new one.
absl::StatusOr<KeyRequest> NextKey(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    const absl::StatusOr<std::string> key = ReadFile(path);
    if (key.ok()) {
      absl::StatusOr<KeyRequest> request = RequestFor(*key);
      if (request.ok()) return request;
    }
  }
  SYNCLINE_ASSIGN_OR_RETURN(KeyRequest request, MakeRequest());
  SYNCLINE_RETURN_IF_ERROR(ReplaceFile({path, request.key, 0600}));
  return request;
}

}  // namespace

absl::Status Renew(const RenewOrder& order) {
  const std::string base(absl::StripSuffix(order.base, ".crt"));
  const std::string ca_file =
      order.ca_file.empty()
          ? (std::filesystem::path(base).parent_path() / "ca.crt").string()
          : order.ca_file;
  SYNCLINE_ASSIGN_OR_RETURN(const std::string old, ReadFile(base + ".crt"));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string old_key, ReadFile(base + ".key"));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string ca, ReadFile(ca_file));
  const CertificatePtr authority = ParseCertificate(ca);
  const CertificatePtr certificate = ParseCertificate(old);
  if (authority == nullptr || certificate == nullptr) {
    return Usage(absl::StrCat("'", authority == nullptr ? ca_file : base + ".crt",
                              "' holds no certificate (PEM)"));
  }
  JoinToken where;
  where.authority = FingerprintOf(*authority);
  where.address = order.address;
  SYNCLINE_ASSIGN_OR_RETURN(const JoinLink link, DialAuthority(where, order.limit));
  SYNCLINE_ASSIGN_OR_RETURN(const KeyRequest next, NextKey(base + ".next.key"));
  v1::RenewRequest request;
  request.set_certificate(ToPem(*certificate));
  request.set_request(next.request);
  SYNCLINE_ASSIGN_OR_RETURN(
      *request.mutable_signature(),
      SignWith(old_key, RenewalMessage(where.authority, next.request)));
  const auto stub = v1::Authority::NewStub(link.channel);
  v1::CertifyReply reply;
  SYNCLINE_RETURN_IF_ERROR(
      AskAgain(order.address, order.limit, [&](grpc::ClientContext* context) {
        return FromGrpcStatus(stub->Renew(context, request, &reply));
      }));
  const PemPair pair = {reply.certificate(), next.key};
  SYNCLINE_RETURN_IF_ERROR(CheckAnswer(pair, link.authority).status());
  SYNCLINE_RETURN_IF_ERROR(ReplacePair(base, pair));
  std::remove((base + ".next.key").c_str());
  return absl::OkStatus();
}

std::string RenewalMessage(std::string_view authority, std::string_view request) {
  return absl::StrCat("syncline renew 1\n", std::string(authority), "\n",
                      std::string(request));
}

absl::Time WhenToRenew(absl::Time from, absl::Time until, std::string_view serial) {
  const absl::Duration life = std::max(until - from - kBackdated, absl::ZeroDuration());
  const std::string digest = Sha256(serial);
  const double share = static_cast<uint8_t>(digest[0]) / 256.0;
  return until - life / 3 - share * (life / 12);
}

}  // namespace syncline::certs
