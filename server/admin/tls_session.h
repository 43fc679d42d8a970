// The server side of TLS for the admin port, which turns bytes into bytes and has no
// socket. It supports only TLS 1.3, with one certificate, no client certificates and no
// tickets.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const auto identity, TlsIdentity::Load(tls));
//   TlsSession session(*identity);
//   SYNCLINE_RETURN_IF_ERROR(session.Receive(from_the_socket, request));
//   session.Send(reply);
//   ... send session.TakeOutput() to the peer, also if Receive has failed ...
//
// Thread safety: threads may share a TlsIdentity. One thread owns a session.
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

// A certificate and its key, as the files were when they were loaded.
class TlsIdentity {
 public:
  // Fails with Failure::kUsage if a file is missing or not valid now, or if the key does
  // not fit the certificate.
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

  // Decrypts, and appends the result to `plain`. Fails with Unavailable if the peer has
  // ended TLS, and with PermissionDenied if the peer speaks no TLS that is supported.
  absl::Status Receive(std::string_view sealed, std::string& plain);

  // Encrypts. Fails with Unavailable if nothing can be sent now, because the peer has
  // begun but not finished a handshake message. REQUIRES: Receive has returned data, so
  // the handshake is done.
  absl::Status Send(std::string_view plain);

  // Tells the peer that nothing follows.
  void End();

  // Returns the bytes to send to the peer, in order.
  std::string TakeOutput();

 private:
  ssl_st* const ssl_;
  bio_st* const in_;   // owned by ssl_
  bio_st* const out_;  // owned by ssl_
};

}  // namespace syncline
