// A blocking TLS client of the admin port, on a connected socket. For tests only.
#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <string_view>

#include "comm/base/check.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/freer.h"

namespace syncline {

class TlsClient {
 public:
  // Trusts servers at 127.0.0.1 whose certificate is signed by `ca_file`.
  TlsClient(const UniqueFd& socket, const std::string& ca_file,
            int newest_version = TLS1_3_VERSION)
      : context_(SSL_CTX_new(TLS_client_method())) {
    SYNCLINE_CHECK(SSL_CTX_load_verify_file(context_.get(), ca_file.c_str()) == 1);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_max_proto_version(context_.get(), newest_version);
    ssl_.reset(SSL_new(context_.get()));
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), "127.0.0.1");
    SSL_set_fd(ssl_.get(), socket.get());
  }

  bool Connect() {
    ERR_clear_error();
    return SSL_connect(ssl_.get()) == 1;
  }

  // Returns the name in the server's certificate. Empty: no certificate.
  std::string ServersName() const {
    const std::unique_ptr<X509, Freer<X509_free>> shown(
        SSL_get1_peer_certificate(ssl_.get()));
    if (shown == nullptr) return "";
    char name[256] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(shown.get()), NID_commonName, name,
                              sizeof(name));
    return name;
  }

  void Send(std::string_view bytes) {
    SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
  }

  // Reads what has arrived, up to `most` bytes. Empty: the end.
  std::string Read(size_t most = 4096) {
    std::string text(most, '\0');
    const int got = SSL_read(ssl_.get(), text.data(), static_cast<int>(most));
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

  // Reads until the server ends TLS. Returns nothing if it just cuts the connection.
  std::string ReadAll() {
    std::string text;
    for (std::string more = Read(); !more.empty(); more = Read()) text += more;
    const bool has_ended = (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
    return has_ended ? text : "";
  }

 private:
  const std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>> context_;
  std::unique_ptr<SSL, Freer<SSL_free>> ssl_;
};

}  // namespace syncline
