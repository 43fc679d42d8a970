// Protects the admin port: the certificate that it shows, and the token that readers must
// show. Both are files, and are read again when they change.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto door, AdminDoor::Open({.seals = true, .tls = tls}));
//   door->LookAgain();                      // each second
//   auto session = door->NewSession();      // of a connection; null: plain text
//   if (auto refusal = door->Judge(request); refusal.has_value()) ... it is the reply ...
//
// If a changed file cannot be used, the old contents stay in use, and the log says why.
//
// Thread safety: LookAgain must be called by one thread, the rest by any.
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
  bool seals = false;  // use TLS
  TlsOptions tls = {};
  std::string token_file = {};  // empty: no token is needed
  Logger log = {};
  Logger audit = {};  // logs refused readers
  // Called on the requesting thread when a reader has shown a wrong token. Null: not
  // called.
  std::function<void()> on_refused = nullptr;
};

class AdminDoor {
 public:
  // Fails with Failure::kUsage, which names the flag of the wrong file.
  static absl::StatusOr<std::unique_ptr<AdminDoor>> Open(AdminDoorOptions options);

  // Reads the files again if they have changed.
  void LookAgain() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the TLS session of a new connection, or null for plain text.
  std::unique_ptr<TlsSession> NewSession() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the reply that replaces the page: a refusal, or the login form's reply.
  // Returns nullopt if the reader may have the page.
  std::optional<HttpReply> Judge(const HttpRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Returns a text that changes when the file does. A missing file has one too.
  static std::string Look(const std::string& path);

  explicit AdminDoor(AdminDoorOptions options) : options_(std::move(options)) {}
  absl::StatusOr<ReadToken> ReadTokenFile() const;
  HttpReply Login(const HttpRequest& request, const ReadToken& token);
  void Refused(const HttpRequest& request);
  // Browsers send the cookies of a host to all its ports. The name therefore contains a
  // mark of the token; otherwise two processes with different tokens would log out each
  // other's readers.
  std::string CookieName(const ReadToken& token) const;

  const AdminDoorOptions options_;
  Repeats refused_;            // by source
  std::string seen_identity_;  // used by LookAgain's thread only
  std::string seen_token_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TlsIdentity> identity_ ABSL_GUARDED_BY(mutex_);
  std::optional<ReadToken> token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline
