#include "cli/authority/join.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/authority/answer.h"
#include "cli/authority/directory.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/identity.h"
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

// A new folder for the files of the certificate. It is removed again if none are stored.
class MadeFolder {
 public:
  explicit MadeFolder(std::string path) : path_(std::move(path)) {}
  ~MadeFolder() {
    if (!is_ours_) return;
    std::remove((path_ + "/ca.crt").c_str());
    rmdir(path_.c_str());  // fails if another program has put something into it
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

// Checks that the certificate can be stored, before the token is used: each use counts.
absl::Status Prepare(const std::string& directory, const std::string& authority) {
  if (access(directory.c_str(), W_OK | X_OK) != 0) return CannotWrite(directory);
  std::error_code error;
  const std::string path = directory + "/ca.crt";
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const std::string pem, ReadFile(path));
  const CertificatePtr there = ParseCertificate(pem);
  if (there != nullptr && FingerprintOf(*there) == authority) return absl::OkStatus();
  return Usage(absl::StrCat("'", path,
                            "' belongs to another authority than the token; remove it, "
                            "or give another directory with --out"));
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
  const auto stub = v1::Authority::NewStub(link.channel);
  v1::CertifyReply reply;
  SYNCLINE_RETURN_IF_ERROR(
      AskAgain(token->address, order.limit, [&](grpc::ClientContext* context) {
        return FromGrpcStatus(stub->Certify(context, request, &reply));
      }));
  const PemPair pair = {reply.certificate(), own.key};
  SYNCLINE_ASSIGN_OR_RETURN(const Identity who, CheckAnswer(pair, link.authority));
  const std::string base = absl::StrCat(order.directory, "/", NameOf(who));
  SYNCLINE_RETURN_IF_ERROR(ReplaceFile({order.directory + "/ca.crt", link.authority}));
  SYNCLINE_RETURN_IF_ERROR(ReplacePair(base, pair));
  folder.Keep();
  return base;
}

}  // namespace syncline::certs
