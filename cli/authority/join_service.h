// The service that answers `syncline certs join` and `renew`. It signs a certificate for
// a client that has a token, or a certificate that is still valid. The client's key never
// leaves its machine. The service runs only where the CA's key is stored.
//
//   JoinService service(authority, {.directory = "certs", .log = log, .audit = audit});
//   SYNCLINE_ASSIGN_OR_RETURN(RunningServer running, StartJoinServer(
//       {.authority = authority.pair, .validity = validity, .service = &service}));
//
// The token, or the certificate and signature, are checked before any other part of the
// request is parsed. Each host may ask ten times at once and then once a second. The
// audit log records each certificate given, and of equal refusals of one host the 1st,
// 2nd, 4th, 8th …
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/authority/ask_limit.h"
#include "cli/authority/directory.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/repeats.h"
#include "proto/join.grpc.pb.h"

namespace syncline::certs {

struct JoinServiceOptions {
  std::string directory = {};
  Logger log = {};
  Logger audit = {};
};

class JoinService final : public v1::Authority::Service {
 public:
  JoinService(Authority authority, JoinServiceOptions options)
      : authority_(std::move(authority)), options_(std::move(options)) {}

  grpc::Status Certify(grpc::ServerContext* context, const v1::CertifyRequest* request,
                       v1::CertifyReply* reply) override;
  grpc::Status Renew(grpc::ServerContext* context, const v1::RenewRequest* request,
                     v1::CertifyReply* reply) override;

 private:
  absl::StatusOr<std::string> CertificateFor(const v1::CertifyRequest& request,
                                             const std::string& host)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `before`: receives the serial of the present certificate, for people.
  absl::StatusOr<std::string> Renewed(const v1::RenewRequest& request,
                                      const std::string& host, std::string* before)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Admit(const std::string& host) ABSL_LOCKS_EXCLUDED(mutex_);
  // `shown`: the token's id or the serial number, for people.
  void Refused(const LogField& shown, const std::string& peer, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Authority authority_;
  const JoinServiceOptions options_;
  const SteadyClock clock_;
  Repeats refused_;

  absl::Mutex mutex_;
  AskLimit limit_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::certs
