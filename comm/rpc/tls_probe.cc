#include "comm/rpc/tls_probe.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "comm/base/env.h"
#include "comm/base/printable.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/freer.h"
#include "comm/rpc/trust.h"

namespace syncline {
namespace {

using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;

constexpr absl::string_view kSaysNothing =
    "accepts connections but sends nothing; check that it is not stopped";

// Returns the hosts for which a certificate is valid.
std::string HostsOf(const CertificateFacts& facts) {
  std::vector<std::string> hosts = facts.names.hosts;
  hosts.insert(hosts.end(), facts.addresses.begin(), facts.addresses.end());
  return hosts.empty() ? "no host" : Printable(absl::StrJoin(hosts, ", "));
}

// A TLS handshake over memory buffers. This class moves the bytes over the socket itself,
// because OpenSSL's own way could raise SIGPIPE in the user's process.
class Handshake {
 public:
  Handshake(int socket, const TlsOptions& tls)
      : socket_(socket), context_(SSL_CTX_new(TLS_client_method())) {
    // Certificates are judged afterwards, one by one, so that the cause can be named.
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_NONE, nullptr);
    if (tls.ca_file.empty()) {
      SSL_CTX_set_default_verify_paths(context_.get());
    } else {
      SSL_CTX_load_verify_file(context_.get(), tls.ca_file.c_str());
    }
    if (!tls.cert_file.empty()) {
      SSL_CTX_use_certificate_chain_file(context_.get(), tls.cert_file.c_str());
      SSL_CTX_use_PrivateKey_file(context_.get(), tls.key_file.c_str(), SSL_FILETYPE_PEM);
    }
    constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context_.get(), kHttp2.data(), kHttp2.size());
    ssl_.reset(SSL_new(context_.get()));
    from_peer_ = BIO_new(BIO_s_mem());
    to_peer_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_.get(), from_peer_, to_peer_);  // takes ownership of both
  }

  // Returns true on success. Otherwise reason() says why not.
  bool Connect(const std::string& host) {
    SSL_set_tlsext_host_name(ssl_.get(), host.c_str());
    return Drive([this] { return SSL_connect(ssl_.get()); });
  }
  // Waits for the server's first byte. With TLS 1.3 the server judges the client only
  // after the client's handshake.
  bool ReadOne() {
    char byte = 0;
    return Drive([this, &byte] { return SSL_read(ssl_.get(), &byte, 1); });
  }

  SSL& ssl() { return *ssl_; }
  int reason() const { return reason_; }  // OpenSSL's, 0 when the connection ended
  bool is_plain_text() const { return is_plain_text_; }
  bool timed_out() const { return timed_out_; }

 private:
  bool Drive(const std::function<int()>& step) {
    for (;;) {
      ERR_clear_error();
      const int done = step();
      const int error = done > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), done);
      if (error == SSL_ERROR_SSL) reason_ = ERR_GET_REASON(ERR_peek_error());
      Flush();
      if (done > 0) return true;
      if (error != SSL_ERROR_WANT_READ || !Fill()) return false;
    }
  }

  void Flush() {
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(to_peer_, &bytes);
    // If the peer is gone, the next read shows it.
    if (size > 0) send(socket_, bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
    static_cast<void>(BIO_reset(to_peer_));
  }

  bool Fill() {
    std::array<char, 16384> bytes;
    // Limits the time even if the peer sends byte by byte.
    timed_out_ = clock_.Now() > kLongest;
    if (timed_out_) return false;
    const ssize_t got = recv(socket_, bytes.data(), bytes.size(), 0);
    timed_out_ = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (got <= 0) return false;
    constexpr char kAlert = 0x15;
    constexpr char kHandshake = 0x16;
    if (is_first_) is_plain_text_ = bytes[0] != kAlert && bytes[0] != kHandshake;
    is_first_ = false;
    return BIO_write(from_peer_, bytes.data(), static_cast<int>(got)) == got;
  }

  static constexpr absl::Duration kLongest = absl::Seconds(5);

  const SteadyClock clock_;
  const int socket_;
  const Context context_;
  std::unique_ptr<SSL, Freer<SSL_free>> ssl_;
  BIO* from_peer_ = nullptr;  // of ssl_
  BIO* to_peer_ = nullptr;    // of ssl_
  int reason_ = 0;
  bool is_first_ = true;
  bool is_plain_text_ = false;
  bool timed_out_ = false;
};

// Returns why the server refuses this client. gRPC's servers close the connection without
// an alert that would say it. Then this is the likeliest cause that can be seen from
// here.
Diagnosis WhyItRefusesUs(Handshake& handshake, const TlsOptions& tls) {
  if (tls.cert_file.empty()) {
    return {"it asks for a certificate; give --tls-cert and --tls-key", true};
  }
  const std::string ours = absl::StrCat("--tls-cert '", tls.cert_file, "'");
  X509* certificate = SSL_get_certificate(&handshake.ssl());
  if (certificate == nullptr) return {absl::StrCat("cannot read ", ours), true};
  const std::string time = WhyNotValid(*certificate, absl::Now());
  if (handshake.reason() == SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED || !time.empty()) {
    return {absl::StrCat("it refuses ", ours, ", which ",
                         time.empty() ? "expired by its clock; renew it" : time)};
  }
  return {
      absl::StrCat(
          "it refuses ", ours, ", signed by '", Printable(FactsOf(*certificate).issuer),
          "'; give a certificate of the CA that it was started with, or look at its "
          "log"),
      true};
}

Diagnosis WhatIsWrongWith(X509& certificate, long verdict, const std::string& host,
                          const TlsOptions& tls) {
  const CertificateFacts facts = FactsOf(certificate);
  const std::string theirs =
      absl::StrCat("its certificate ('", Printable(facts.subject), "') ");
  const std::string time = WhyNotValid(certificate, absl::Now());
  if (!time.empty()) return {theirs + time};
  if (verdict == X509_V_ERR_CERT_HAS_EXPIRED) {
    return {theirs + "is signed by an authority that has expired; renew its CA"};
  }
  if (verdict != X509_V_OK) {
    return {absl::StrCat(theirs, "is signed by '", Printable(facts.issuer), "', ",
                         tls.ca_file.empty()
                             ? "which this host does not trust; give its CA with --tls-ca"
                             : absl::StrCat("which is not in --tls-ca '", tls.ca_file,
                                            "'; give the CA that signed it")),
            true};
  }
  if (!IsForHost(certificate, host)) {
    return {absl::StrCat(theirs, "is for ", HostsOf(facts), ", not for '", host,
                         "'; use one of those names, or have this one added"),
            true};
  }
  // A client without a certificate is told that it needs one.
  if (tls.cert_file.empty()) return {};
  const absl::Status is_coordinator = CheckIsCoordinator(facts.names, tls);
  return {std::string(is_coordinator.message()), true};
}

}  // namespace

Diagnosis ProbeTls(int socket, const std::string& host, const TlsOptions& tls) {
  Handshake handshake(socket, tls);
  const bool is_connected = handshake.Connect(host);
  if (handshake.is_plain_text()) return {std::string(kSpeaksPlainText), true};
  if (handshake.timed_out()) {
    return {absl::StrCat("it ", kSaysNothing)};
  }
  const CertificatePtr theirs(SSL_get1_peer_certificate(&handshake.ssl()));
  if (theirs != nullptr) {
    const long verdict = SSL_get_verify_result(&handshake.ssl());
    const Diagnosis wrong = WhatIsWrongWith(*theirs, verdict, host, tls);
    if (!wrong.cause.empty()) return wrong;
  }
  // A server that accepts the client may just be slow; that is not a refusal.
  if (is_connected && (handshake.ReadOne() || handshake.timed_out())) return {};
  Diagnosis refused = WhyItRefusesUs(handshake, tls);
  refused.is_lasting &= theirs != nullptr;
  return refused;
}

bool AnswersTls(int socket, const std::string& host) {
  Handshake handshake(socket, {});
  handshake.Connect(host);
  return CertificatePtr(SSL_get1_peer_certificate(&handshake.ssl())) != nullptr;
}

absl::StatusOr<std::string> FetchAuthority(int socket, const std::string& host,
                                           const std::string& fingerprint) {
  Handshake handshake(socket, {});
  handshake.Connect(host);
  const STACK_OF(X509)* const shown = SSL_get_peer_cert_chain(&handshake.ssl());
  if (shown == nullptr && handshake.timed_out()) {
    return absl::UnavailableError(absl::StrCat("the server there ", kSaysNothing));
  }
  if (shown == nullptr) {
    return absl::UnavailableError(
        "the server there shows no certificate; check the port, and that `syncline certs "
        "serve` listens on it");
  }
  for (int i = 0; i < sk_X509_num(shown); ++i) {
    const X509* const certificate = sk_X509_value(shown, i);
    if (FingerprintOf(*certificate) == fingerprint) return ToPem(*certificate);
  }
  return absl::PermissionDeniedError(
      "the server there has no certificate of the authority that the token or ca.crt "
      "names; the token was not sent to it: check the address, and that token and "
      "certificate belong to this cluster");
}

}  // namespace syncline
