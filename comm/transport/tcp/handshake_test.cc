// The limits of a handshake; and that only the key can prove a server.
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/transport/tcp/hostile_test_util.h"
#include "comm/transport/tcp/tcp_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
template <typename T, auto kFree>
using Owned = std::unique_ptr<T, Free<kFree>>;

// Returns records of a ClientHello that announces 128 KiB of extensions; OpenSSL alone
// would accept it.
std::string LongClientHello(size_t bytes) {
  constexpr size_t kRecord = 4096;
  std::string hello = {1, 1, '\xff', '\0'};  // its kind; 0x01ff00 bytes follow
  hello += {3, 3};
  hello.append(32, 'r');
  hello += {0, 0, 2, 0x13, 0x01, 1, 0};
  hello.resize(bytes, '\0');
  std::string records;
  for (size_t at = 0; at < hello.size(); at += kRecord) {
    const std::string part = hello.substr(at, kRecord);
    records +=
        {22, 3, 1, static_cast<char>(part.size() >> 8), static_cast<char>(part.size())};
    records += part;
  }
  return records;
}

TEST(TcpHandshake, AStrangerGetsNoMemoryBeyondThatOfOne) {
  TcpNode server({.failure_timeout = absl::Seconds(100)});
  RawPeer stranger(server.transport->address());
  const std::string hello = LongClientHello(20 << 10);
  ASSERT_TRUE(RunUntil(
      [&] {
        stranger.Say(stranger.has_unsent() ? "" : hello);
        server.transport->Progress();
      },
      [&] { return stranger.IsClosed(); }));
  EXPECT_EQ(server.acceptor.last_refused.refusal, Refusal::kHandshake);
  EXPECT_THAT(server.acceptor.last_refused.why, HasSubstr("too many bytes"));
}

// An attacker on the path who answers in place of the server, with a certificate of its
// own.
class FalseServer {
 public:
  explicit FalseServer(int newest_version = TLS1_3_VERSION)
      : key_(EVP_EC_gen("P-256")),
        certificate_(X509_new()),
        context_(SSL_CTX_new(TLS_server_method())),
        listener_(*ListenAt(*MakeSocketAddress("127.0.0.1", 0))) {
    X509* const certificate = certificate_.get();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key_.get());
    EXPECT_GT(X509_sign(certificate, key_.get(), EVP_sha256()), 0);
    EXPECT_EQ(SSL_CTX_use_certificate(context_.get(), certificate), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context_.get(), key_.get()), 1);
    EXPECT_EQ(SSL_CTX_set_max_proto_version(context_.get(), newest_version), 1);
  }
  std::string address() const { return EncodeTcpAddress("127.0.0.1", listener_.port); }

  void Pump() {
    if (ssl_ == nullptr) {
      SocketAddress peer;
      fd_ = *AcceptFrom(listener_.fd.get(), peer);
      if (!fd_.valid()) return;
      ssl_.reset(SSL_new(context_.get()));
      SSL_set_fd(ssl_.get(), fd_.get());
    }
    std::array<char, 4096> bytes;
    if (SSL_accept(ssl_.get()) != 1) return;
    const int got = SSL_read(ssl_.get(), bytes.data(), bytes.size());
    if (got > 0) heard_.append(bytes.data(), static_cast<size_t>(got));
  }
  const std::string& heard() const { return heard_; }

 private:
  Owned<EVP_PKEY, EVP_PKEY_free> key_;
  Owned<X509, X509_free> certificate_;
  Owned<SSL_CTX, SSL_CTX_free> context_;
  Listener listener_;
  UniqueFd fd_;
  Owned<SSL, SSL_free> ssl_;
  std::string heard_;
};

TEST(TcpHandshake, ACertificateIsNoKey) {
  FalseServer server;
  TcpNode dialler({});
  absl::Status failure;
  const auto endpoint = dialler.Dial(
      server.address(), {.on_failure = [&](const auto& status) { failure = status; }});
  endpoint->Send(std::as_bytes(std::span(std::string_view("secret"))), {}, nullptr);
  ASSERT_TRUE(RunUntil(
      [&] {
        dialler.transport->Progress();
        server.Pump();
      },
      [&] { return !failure.ok() || !server.heard().empty(); }));
  EXPECT_EQ(server.heard(), "");
}

// A peer that has the key but speaks TLS 1.2 at most, with any cipher, and uses the key
// as that version does.
class OldClient {
 public:
  explicit OldClient(const std::string& address)
      : context_(SSL_CTX_new(TLS_client_method())),
        fd_(*DialTo(*ParseTcpAddress(address))),
        ssl_(SSL_new(context_.get())) {
    EXPECT_EQ(SSL_set_max_proto_version(ssl_.get(), TLS1_2_VERSION), 1);
    EXPECT_EQ(SSL_set_cipher_list(ssl_.get(), "ALL:@SECLEVEL=0"), 1);
    SSL_set_psk_client_callback(ssl_.get(), UseKey);
    SSL_set_fd(ssl_.get(), fd_.get());
  }

  // Returns true once it is connected. Before that it has nothing to send.
  bool Pump() { return SSL_connect(ssl_.get()) == 1; }

 private:
  // NOLINTNEXTLINE(readability-function-size): OpenSSL says what it is called with.
  static unsigned UseKey(SSL*, const char*, char* identity, unsigned identity_bytes,
                         unsigned char* key, unsigned key_bytes) {
    const PeerKey alice = Alice();
    if (alice.identity.size() >= identity_bytes || SecretKey::kBytes > key_bytes)
      return 0;
    std::memcpy(identity, alice.identity.c_str(), alice.identity.size() + 1);
    std::memcpy(key, alice.key.bytes().data(), SecretKey::kBytes);
    return SecretKey::kBytes;
  }

  Owned<SSL_CTX, SSL_CTX_free> context_;
  UniqueFd fd_;
  Owned<SSL, SSL_free> ssl_;
};

// Without the minimum version a server would look for a TLS 1.2 cipher, find none, and
// refuse as well. The reason of the refusal therefore shows whether the minimum is set.
TEST(TcpHandshake, AnOlderTlsIsRefusedForItsVersion) {
  TcpNode server({});
  OldClient client(server.transport->address());
  bool is_in = false;
  ASSERT_TRUE(RunUntil(
      [&] {
        is_in |= client.Pump();
        server.transport->Progress();
      },
      [&] { return is_in || !server.acceptor.refused.empty(); }));
  EXPECT_FALSE(is_in);
  EXPECT_EQ(server.acceptor.last_refused.refusal, Refusal::kHandshake);
  EXPECT_THAT(server.acceptor.last_refused.why, HasSubstr("unsupported protocol"));
}

TEST(TcpHandshake, NoOlderTlsIsOffered) {
  FalseServer server(TLS1_2_VERSION);
  TcpNode dialler({});
  absl::Status failure;
  const auto endpoint = dialler.Dial(
      server.address(), {.on_failure = [&](const auto& status) { failure = status; }});
  ASSERT_TRUE(RunUntil(
      [&] {
        dialler.transport->Progress();
        server.Pump();
      },
      [&] { return !failure.ok(); }));
  EXPECT_THAT(std::string(failure.message()), HasSubstr("alert protocol version"));
}

}  // namespace
}  // namespace syncline
