// The door of the admin port: the certificate that it shows, and the token that readers must
// show. Both are files that are read again when they change.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto door, AdminDoor::Open({.seals = true, .tls = tls}));
//   door->LookAgain();                      // each second
//   auto session = door->NewSession();      // of a connection; null: plain text
//   if (auto refusal = door->Judge(request); refusal.has_value()) ... it is the reply ...
//
// A file that cannot be used when it has changed changes nothing; the log says why.
//
// Thread safety: LookAgain from one thread, the rest from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/log.h"
#include "comm/base/repeats.h"
#include "comm/rpc/tls.h"
#include "server/admin/http_loop.h"
#include "server/admin/http_request.h"
#include "server/admin/read_token.h"
#include "server/admin/tls_session.h"

namespace syncline {

struct AdminDoorOptions {
  bool seals = false;  // speaks TLS
  TlsOptions tls = {};
  std::string token_file = {};  // empty: anybody may read
  Logger log = {};
  Logger audit = {};  // who was refused
  // Somebody showed another token; from the thread that asked. Unset: nobody counts.
  std::function<void()> on_refused = nullptr;
};

class AdminDoor {
 public:
  // Failure::kUsage names the flag of a file that is wrong.
  static absl::StatusOr<std::unique_ptr<AdminDoor>> Open(AdminDoorOptions options);

  void LookAgain() ABSL_LOCKS_EXCLUDED(mutex_);

  std::unique_ptr<TlsSession> NewSession() const ABSL_LOCKS_EXCLUDED(mutex_);

  // What answers in place of the page: a refusal, or what the login form gets. nullopt:
  // who asks may read.
  std::optional<HttpReply> Judge(const HttpRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Of a file, to see that it has changed; one that is missing has one, too.
  static std::string Look(const std::string& path);

  explicit AdminDoor(AdminDoorOptions options) : options_(std::move(options)) {}
  absl::StatusOr<ReadToken> ReadTokenFile() const;
  HttpReply Login(const HttpRequest& request, const ReadToken& token);
  void Refused(const HttpRequest& request);
  // Browsers keep one jar for all ports of a host: two processes of one scheme and different
  // tokens there log each other's readers out.
  std::string CookieName(const ReadToken& token) const;

  const AdminDoorOptions options_;
  Repeats refused_;            // by source
  std::string seen_identity_;  // of LookAgain's thread
  std::string seen_token_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TlsIdentity> identity_ ABSL_GUARDED_BY(mutex_);
  std::optional<ReadToken> token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
