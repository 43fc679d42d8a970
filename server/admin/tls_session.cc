#include "server/admin/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/freer.h"

namespace syncline {
namespace {

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

std::string LastError() {
  std::array<char, 256> text = {};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  return text.data();
}

// Nobody can type a passphrase.
int NoPassphrase(char*, int, int, void*) { return 0; }

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsIdentity>> TlsIdentity::Load(
    const TlsOptions& tls) {
  SYNCLINE_RETURN_IF_ERROR(CheckTlsOptions(tls));
  if (tls.cert_file.empty()) {
    return Usage("the admin port speaks TLS and needs --tls-cert and --tls-key");
  }
  std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>> context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr ||
      SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_num_tickets(context.get(), 0) != 1) {
    return absl::InternalError(absl::StrCat("setting up TLS 1.3: ", LastError()));
  }
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassphrase);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context.get(), tls.cert_file.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context.get(), tls.key_file.c_str(),
                                  SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return Usage(absl::StrCat("cannot use --tls-cert '", tls.cert_file,
                              "' with --tls-key '", tls.key_file, "': ", LastError()));
  }
  return std::shared_ptr<const TlsIdentity>(new TlsIdentity(context.release()));
}

TlsIdentity::~TlsIdentity() { SSL_CTX_free(context_); }

TlsSession::TlsSession(const TlsIdentity& identity)
    : ssl_(SSL_new(identity.context_)),
      in_(BIO_new(BIO_s_mem())),
      out_(BIO_new(BIO_s_mem())) {
  // Fails only without memory.
  SYNCLINE_CHECK(ssl_ != nullptr && in_ != nullptr && out_ != nullptr);
  BIO_set_mem_eof_return(in_, -1);  // empty means "later", not the end
  SSL_set_bio(ssl_, in_, out_);     // takes ownership of both
  SSL_set_accept_state(ssl_);
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

absl::Status TlsSession::Receive(std::string_view sealed, std::string& plain) {
  const int size = static_cast<int>(sealed.size());
  // Fails only without memory.
  SYNCLINE_CHECK(BIO_write(in_, sealed.data(), size) == size);
  const size_t before = plain.size();
  std::array<char, 4096> bytes;
  for (;;) {
    ERR_clear_error();
    size_t got = 0;
    const int result = SSL_read_ex(ssl_, bytes.data(), bytes.size(), &got);
    if (result == 1) {
      plain.append(bytes.data(), got);
      continue;
    }
    switch (SSL_get_error(ssl_, result)) {
      case SSL_ERROR_WANT_READ:
        return absl::OkStatus();
      case SSL_ERROR_ZERO_RETURN:
        // The peer may have sent its request before, and wait for the reply.
        if (plain.size() > before) return absl::OkStatus();
        return absl::UnavailableError("the peer ended TLS");
      default:
        return absl::PermissionDeniedError(absl::StrCat("TLS: ", LastError()));
    }
  }
}

absl::Status TlsSession::Send(std::string_view plain) {
  if (plain.empty()) return absl::OkStatus();
  ERR_clear_error();
  size_t taken = 0;
  // The memory buffer takes everything, unless OpenSSL is in a handshake again.
  const int result = SSL_write_ex(ssl_, plain.data(), plain.size(), &taken);
  if (result == 1 && taken == plain.size()) return absl::OkStatus();
  return absl::UnavailableError("the peer stopped in the middle of a handshake");
}

void TlsSession::End() {
  ERR_clear_error();
  SSL_shutdown(ssl_);
}

std::string TlsSession::TakeOutput() {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out_, &bytes);
  std::string output(bytes, static_cast<size_t>(size));
  static_cast<void>(BIO_reset(out_));
  return output;
}

}  // namespace syncline
