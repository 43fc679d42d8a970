#include "cli/authority/renew.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/authority/answer.h"
#include "cli/authority/directory.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/announcement.h"
#include "comm/rpc/authorities.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/identity.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/join_channel.h"
#include "comm/rpc/join_token.h"
#include "comm/rpc/status.h"
#include "proto/join.grpc.pb.h"

namespace syncline::certs {
namespace {

constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----";

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// PATH.next.key, locked by one process at a time.
class NextKey {
 public:
  explicit NextKey(std::string path) : path_(std::move(path)) {}

  // Opens and locks the file. Waits while another process has the lock.
  absl::Status Open() {
    for (;;) {
      fd_ =
          UniqueFd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
      if (!fd_.valid()) return CannotWrite(path_);
      while (flock(fd_.get(), LOCK_EX) != 0) {
        if (errno != EINTR) return CannotWrite(path_);
      }
      struct stat held = {};
      struct stat there = {};
      // The process that held the lock before may have removed the file.
      if (fstat(fd_.get(), &held) == 0 && stat(path_.c_str(), &there) == 0 &&
          held.st_ino == there.st_ino && held.st_dev == there.st_dev) {
        return absl::OkStatus();
      }
    }
  }

  // Returns the contents: the key of an earlier attempt that did not finish, or nothing.
  std::string Left() const {
    std::array<char, 4096> bytes = {};
    const ssize_t got = pread(fd_.get(), bytes.data(), bytes.size(), 0);
    return {bytes.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
  }

  // Returns a request for that key, or for a new key that is on the disk.
  absl::StatusOr<KeyRequest> Take() const {
    absl::StatusOr<KeyRequest> left = RequestFor(Left());
    if (left.ok() && KeyOfRequest(left->request).ok()) return left;
    SYNCLINE_ASSIGN_OR_RETURN(KeyRequest made, MakeRequest());
    const auto bytes = static_cast<ssize_t>(made.key.size());
    if (ftruncate(fd_.get(), 0) != 0 ||
        pwrite(fd_.get(), made.key.data(), made.key.size(), 0) != bytes ||
        fsync(fd_.get()) != 0) {
      return CannotWrite(path_);
    }
    return made;
  }

  void Remove() const { unlink(path_.c_str()); }

 private:
  const std::string path_;
  UniqueFd fd_;
};

struct Files {
  std::string base;
  PemPair own;
  CertificatePtr certificate;
  std::string authority;  // fingerprint
};

bool BelongTogether(const std::string& certificate, const std::string& key) {
  const absl::Status status = CheckIdentity({"the certificate", "", certificate},
                                            {"the key", "", key}, absl::Now());
  return status.ok();
}

// Returns the authority in `pem` that has signed `certificate`; otherwise the first one.
absl::StatusOr<std::string> SignerOf(const std::string& certificate,
                                     const std::string& pem, const std::string& path) {
  std::string first;
  for (size_t at = pem.find(kBegin); at != pem.npos; at = pem.find(kBegin, at + 1)) {
    const CertificatePtr one = ParseCertificate(pem.substr(at));
    if (one == nullptr) break;
    const std::string fingerprint = FingerprintOf(*one);
    if (first.empty()) first = fingerprint;
    if (VerifyChain(certificate, ToPem(*one), absl::Now()).ok()) return fingerprint;
  }
  if (first.empty())
    return Usage(absl::StrCat("'", path, "' holds no certificate (PEM)"));
  return first;
}

absl::StatusOr<Files> Read(const RenewOrder& order) {
  Files files;
  files.base = std::string(absl::StripSuffix(order.base, ".crt"));
  const std::string ca_file =
      order.ca_file.empty()
          ? (std::filesystem::path(files.base).parent_path() / "ca.crt").string()
          : order.ca_file;
  const std::string path = files.base + ".crt";
  SYNCLINE_ASSIGN_OR_RETURN(files.own.certificate, ReadFile(path));
  SYNCLINE_ASSIGN_OR_RETURN(files.own.key, ReadFile(files.base + ".key"));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string ca, ReadFile(ca_file));
  files.certificate = ParseCertificate(files.own.certificate);
  if (files.certificate == nullptr) {
    return Usage(absl::StrCat("'", path, "' holds no certificate (PEM)"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(files.authority,
                            SignerOf(files.own.certificate, ca, ca_file));
  return files;
}

absl::Status Check(const Files& files) {
  const auto& uris = FactsOf(*files.certificate).names.uris;
  const absl::StatusOr<Identity> who = ParseIdentityUri(uris.size() == 1 ? uris[0] : "");
  if (who.ok() && who->role == Role::kCoordinator) {
    return Usage(
        "renew a coordinator's certificate on the authority's host: `syncline certs "
        "issue DIRECTORY --role coordinator --overwrite`");
  }
  return CheckIdentity({"the certificate", files.base + ".crt", files.own.certificate},
                       {"the key", files.base + ".key", files.own.key}, absl::Now());
}

// Returns true if an earlier process was killed after it had stored the certificate, but
// before the key. Stores the key then.
absl::StatusOr<bool> IsFinished(const NextKey& next, const Files& files) {
  const std::string left = next.Left();
  if (left.empty() || BelongTogether(files.own.certificate, files.own.key) ||
      !BelongTogether(files.own.certificate, left)) {
    return false;
  }
  SYNCLINE_RETURN_IF_ERROR(ReplaceFile({files.base + ".key", left, 0600}));
  next.Remove();
  return true;
}

absl::Status Ask(const RenewOrder& order, const Files& files, PemPair& next,
                 const KeyRequest& key) {
  JoinToken where;
  where.authority = files.authority;
  where.address = order.address;
  const absl::StatusOr<JoinLink> link = DialAuthority(where, order.limit);
  // Another host may have answered in the authority's place. That must not end the
  // certificate's renewal, so it is Unavailable.
  if (!link.ok()) return absl::UnavailableError(link.status().message());
  v1::RenewRequest request;
  request.set_certificate(ToPem(*files.certificate));
  request.set_request(key.request);
  SYNCLINE_ASSIGN_OR_RETURN(
      *request.mutable_signature(),
      SignWith(files.own.key, RenewalMessage(where.authority, key.request)));
  const auto stub = v1::Authority::NewStub(link->channel);
  v1::CertifyReply reply;
  bool is_refused = false;
  const absl::Status status =
      AskAgain(order.address, order.limit, [&](grpc::ClientContext* context) {
        absl::Status answer = FromGrpcStatus(stub->Renew(context, request, &reply));
        is_refused = absl::IsPermissionDenied(answer);
        return answer;
      });
  if (is_refused) return absl::PermissionDeniedError(status.message());
  if (absl::IsUnimplemented(status)) {
    return absl::UnavailableError(
        absl::StrCat("`syncline certs serve` at ", order.address,
                     " is too old to renew certificates; join with a token instead "
                     "(`syncline certs token`)"));
  }
  // Any other error is not this machine's mistake, and the authority may recover.
  if (!status.ok()) return absl::UnavailableError(status.message());
  next = {reply.certificate(), key.key};
  const absl::Status fits = CheckAnswer(next, link->authority).status();
  return fits.ok() ? fits : absl::UnavailableError(fits.message());
}

}  // namespace

absl::Status CheckRenewable(const RenewOrder& order) {
  SYNCLINE_ASSIGN_OR_RETURN(const Files files, Read(order));
  return Check(files);
}

absl::Status Renew(const RenewOrder& order) {
  NextKey next(absl::StrCat(absl::StripSuffix(order.base, ".crt"), ".next.key"));
  SYNCLINE_RETURN_IF_ERROR(Read(order).status());  // before any file is written
  SYNCLINE_RETURN_IF_ERROR(next.Open());
  SYNCLINE_ASSIGN_OR_RETURN(const Files files, Read(order));
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_finished, IsFinished(next, files));
  if (is_finished) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(Check(files));
  SYNCLINE_ASSIGN_OR_RETURN(const KeyRequest key, next.Take());
  PemPair renewed;
  SYNCLINE_RETURN_IF_ERROR(Ask(order, files, renewed, key));
  // The certificate first. Its key is then in PATH.next.key, and IsFinished completes the
  // replacement after a crash.
  SYNCLINE_RETURN_IF_ERROR(ReplaceFile({files.base + ".crt", renewed.certificate}));
  SYNCLINE_RETURN_IF_ERROR(ReplaceFile({files.base + ".key", renewed.key, 0600}));
  next.Remove();
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
