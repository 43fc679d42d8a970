// The server's end of TLS for the admin port: bytes in, bytes out, no socket. TLS 1.3
// alone, one certificate, no client certificates, no tickets.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const auto identity, TlsIdentity::Load(tls));
//   TlsSession session(*identity);
//   SYNCLINE_RETURN_IF_ERROR(session.Receive(from_the_socket, request));
//   session.Send(reply);
//   ... session.TakeOutput() goes to the socket, also when Receive failed ...
//
// Thread safety: a TlsIdentity may be shared; a session belongs to one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/rpc/tls.h"

struct ssl_st;      // SSL of OpenSSL
struct ssl_ctx_st;  // SSL_CTX
struct bio_st;      // BIO

namespace syncline {

// A certificate and its key, as the files were when it was loaded.
class TlsIdentity {
 public:
  // Failure::kUsage when a file is missing, not valid now, or the key is another's.
  static absl::StatusOr<std::shared_ptr<const TlsIdentity>> Load(const TlsOptions& tls);
  ~TlsIdentity();

 private:
  friend class TlsSession;
  explicit TlsIdentity(ssl_ctx_st* context) : context_(context) {}

  ssl_ctx_st* const context_;
};

class TlsSession {
 public:
  explicit TlsSession(const TlsIdentity& identity);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Appends what the peer says to `plain`. Unavailable when it said that it ends;
  // PermissionDenied when this is no TLS that we speak.
  absl::Status Receive(std::string_view sealed, std::string& plain);

  // Unavailable where nothing can be said now: the peer has begun a message of the
  // handshake, which only another one of its records ends.
  // REQUIRES: Receive has given bytes, so that the handshake is done.
  absl::Status Send(std::string_view plain);

  // Says that nothing follows.
  void End();

  // What goes to the peer, in order.
  std::string TakeOutput();

 private:
  ssl_st* const ssl_;
  bio_st* const in_;   // of ssl_
  bio_st* const out_;  // of ssl_
};

}  // namespace syncline
