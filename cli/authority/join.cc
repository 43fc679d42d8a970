#include "cli/authority/join.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/authority/directory.h"
#include "comm/base/env.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/authorities.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/identity.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/join_channel.h"
#include "comm/rpc/join_token.h"
#include "comm/rpc/status.h"
#include "proto/join.grpc.pb.h"

namespace syncline::certs {
namespace {

constexpr absl::Duration kAskAgainAfter = absl::Milliseconds(500);

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// A directory that was made for what comes, and goes again if nothing does.
class MadeFolder {
 public:
  explicit MadeFolder(std::string path) : path_(std::move(path)) {}
  ~MadeFolder() {
    if (!is_ours_) return;
    std::remove((path_ + "/ca.crt").c_str());
    rmdir(path_.c_str());  // stays where somebody else has put something into it
  }
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;

  absl::Status Make() {
    is_ours_ = mkdir(path_.c_str(), 0700) == 0;
    return is_ours_ || errno == EEXIST ? absl::OkStatus() : CannotWrite(path_);
  }
  void Keep() { is_ours_ = false; }

 private:
  const std::string path_;
  bool is_ours_ = false;
};

// That what comes can be kept: a token is good for once.
absl::Status Prepare(const std::string& directory, const std::string& authority) {
  if (access(directory.c_str(), W_OK | X_OK) != 0) return CannotWrite(directory);
  std::error_code error;
  const std::string path = directory + "/ca.crt";
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const std::string pem, ReadFile(path));
  const CertificatePtr there = ParseCertificate(pem);
  if (there != nullptr && FingerprintOf(*there) == authority) return absl::OkStatus();
  return Usage(absl::StrCat("'", path,
                            "' is of another authority than the token; remove it, or "
                            "give another directory with --out"));
}

// The same request again when the answer is lost: the authority counts it once.
absl::StatusOr<std::string> Ask(const JoinLink& link, const v1::CertifyRequest& request,
                                absl::Duration limit) {
  const auto stub = v1::Authority::NewStub(link.channel);
  for (const SteadyClock clock;; absl::SleepFor(kAskAgainAfter)) {
    grpc::ClientContext context;
    SetDeadline(context, limit - clock.Now());
    context.set_wait_for_ready(true);
    v1::CertifyReply reply;
    const absl::Status status = FromGrpcStatus(stub->Certify(&context, request, &reply));
    if (status.ok()) return reply.certificate();
    const bool may_help = absl::IsUnavailable(status);
    if (!may_help || clock.Now() + kAskAgainAfter >= limit) return status;
  }
}

// Whose it is. What came is believed by the same rules as everything else of the wire.
absl::StatusOr<Identity> Check(const std::string& certificate, const std::string& key,
                               const std::string& authority) {
  const absl::Time now = absl::Now();
  SYNCLINE_RETURN_IF_ERROR(CheckIdentity({"the certificate", "that came", certificate},
                                         {"the key", "of this machine", key}, now));
  SYNCLINE_RETURN_IF_ERROR(VerifyChain(certificate, authority, now));
  const CertificateFacts facts = FactsOf(*ParseCertificate(certificate));
  return ParseIdentityUri(facts.names.uris.size() == 1 ? facts.names.uris[0] : "");
}

}  // namespace

absl::StatusOr<std::string> Join(const JoinOrder& order) {
  const absl::StatusOr<JoinToken> token = ParseJoinToken(order.token);
  if (!token.ok()) return Usage(std::string(token.status().message()));
  MadeFolder folder(order.directory);
  SYNCLINE_RETURN_IF_ERROR(folder.Make());
  SYNCLINE_RETURN_IF_ERROR(Prepare(order.directory, token->authority));
  SYNCLINE_ASSIGN_OR_RETURN(const JoinLink link, DialAuthority(*token, order.limit));
  SYNCLINE_ASSIGN_OR_RETURN(const KeyRequest own, MakeRequest());
  v1::CertifyRequest request;
  request.set_token_id(token->id);
  request.set_secret(token->secret);
  request.set_request(own.request);
  const absl::StatusOr<std::string> certificate = Ask(link, request, order.limit);
  if (absl::IsDeadlineExceeded(certificate.status())) {
    return absl::UnavailableError(absl::StrCat(
        "what answers at ", token->address,
        " does not prove to be `syncline certs serve` ",
        "of the token's authority, or is too slow; check the address and try again"));
  }
  SYNCLINE_RETURN_IF_ERROR(certificate.status());
  SYNCLINE_ASSIGN_OR_RETURN(const Identity who,
                            Check(*certificate, own.key, link.authority));
  const std::string base = absl::StrCat(order.directory, "/", NameOf(who));
  SYNCLINE_RETURN_IF_ERROR(ReplaceFile({order.directory + "/ca.crt", link.authority}));
  SYNCLINE_RETURN_IF_ERROR(ReplacePair(base, {*certificate, own.key}));
  folder.Keep();
  return base;
}

}  // namespace syncline::certs
