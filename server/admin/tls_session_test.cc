#include "server/admin/tls_session.h"

#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "comm/rpc/certificates_test_util.h"
#include "comm/rpc/freer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using Bytes = std::string;

constexpr char kClientSecret[] = "CLIENT_TRAFFIC_SECRET_0 ";

// HKDF-Expand-Label with SHA-256 and no context (RFC 8446, 7.1).
Bytes ExpandLabel(const Bytes& secret, std::string_view label, size_t size) {
  Bytes name = "tls13 ";
  name += label;
  Bytes info = {'\0', static_cast<char>(size), static_cast<char>(name.size())};
  info += name;
  info += '\0';
  Bytes out(size, '\0');
  const std::unique_ptr<EVP_PKEY_CTX, Freer<EVP_PKEY_CTX_free>> context(
      EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  const auto unsigned_of = [](const Bytes& bytes) {
    return reinterpret_cast<const unsigned char*>(bytes.data());
  };
  EVP_PKEY_derive_init(context.get());
  EVP_PKEY_CTX_set_hkdf_mode(context.get(), EVP_PKEY_HKDEF_MODE_EXPAND_ONLY);
  EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256());
  EVP_PKEY_CTX_set1_hkdf_key(context.get(), unsigned_of(secret),
                             static_cast<int>(secret.size()));
  EVP_PKEY_CTX_add1_hkdf_info(context.get(), unsigned_of(info),
                              static_cast<int>(info.size()));
  EXPECT_EQ(
      EVP_PKEY_derive(context.get(), reinterpret_cast<unsigned char*>(out.data()), &size),
      1);
  return out;
}

// A client that can also encrypt records itself, with any content.
class Client {
 public:
  Client() : context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_ciphersuites(context_.get(), "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_ex_data(context_.get(), 0, &secret_);
    SSL_CTX_set_keylog_callback(context_.get(), [](const SSL* ssl, const char* line) {
      const std::string_view said = line;
      if (said.substr(0, sizeof(kClientSecret) - 1) != kClientSecret) return;
      void* const secret = SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), 0);
      *static_cast<Bytes*>(secret) =
          absl::HexStringToBytes(Bytes(said.substr(said.rfind(' ') + 1)));
    });
    ssl_.reset(SSL_new(context_.get()));
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(in_, -1);
    SSL_set_bio(ssl_.get(), in_, out_);
    SSL_set_connect_state(ssl_.get());
  }

  void ShakeHands(TlsSession& server) {
    Bytes plain;
    for (int round = 0; round < 4; ++round) {
      SSL_do_handshake(ssl_.get());
      ASSERT_TRUE(server.Receive(TakeOutput(), plain).ok());
      const Bytes answer = server.TakeOutput();
      BIO_write(in_, answer.data(), static_cast<int>(answer.size()));
    }
    ASSERT_TRUE(SSL_is_init_finished(ssl_.get()));
  }

  Bytes Say(std::string_view text) {
    SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()));
    ++records_;
    return TakeOutput();
  }

  // Returns the next record, with a part of a handshake message.
  Bytes SayOfHandshake(Bytes inner) {
    inner += '\x16';
    const size_t size = inner.size() + 16;
    const Bytes head = {'\x17', '\x03', '\x03', static_cast<char>(size >> 8),
                        static_cast<char>(size & 0xff)};
    const Bytes key = ExpandLabel(secret_, "key", 16);
    Bytes nonce = ExpandLabel(secret_, "iv", 12);
    nonce.back() = static_cast<char>(nonce.back() ^ records_++);
    Bytes sealed(size, '\0');
    const auto in = [](const Bytes& bytes) {
      return reinterpret_cast<const unsigned char*>(bytes.data());
    };
    auto* const out = reinterpret_cast<unsigned char*>(sealed.data());
    const std::unique_ptr<EVP_CIPHER_CTX, Freer<EVP_CIPHER_CTX_free>> cipher(
        EVP_CIPHER_CTX_new());
    int done = 0;
    EVP_EncryptInit_ex(cipher.get(), EVP_aes_128_gcm(), nullptr, in(key), in(nonce));
    EVP_EncryptUpdate(cipher.get(), nullptr, &done, in(head), 5);
    EVP_EncryptUpdate(cipher.get(), out, &done, in(inner),
                      static_cast<int>(inner.size()));
    EVP_EncryptFinal_ex(cipher.get(), out + done, &done);
    EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, 16, out + inner.size());
    return head + sealed;
  }

 private:
  Bytes TakeOutput() {
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(out_, &bytes);
    Bytes output(bytes, static_cast<size_t>(size));
    static_cast<void>(BIO_reset(out_));
    return output;
  }

  Bytes secret_;
  const std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>> context_;
  std::unique_ptr<SSL, Freer<SSL_free>> ssl_;
  BIO* in_ = nullptr;   // owned by ssl_
  BIO* out_ = nullptr;  // owned by ssl_
  int records_ = 0;     // number of records of application data
};

class TlsSessionTest : public testing::Test {
 protected:
  TlsSessionTest() {
    files_.MakeCa("ca");
    files_.MakeLeaf("own", "ca");
    server_ = std::make_unique<TlsSession>(**TlsIdentity::Load(files_.Identity("own")));
    client_.ShakeHands(*server_);
  }

  TestCertificates files_;
  std::unique_ptr<TlsSession> server_;
  Client client_;
};

constexpr char kKeyUpdate[] = {'\x18', '\0', '\0', '\x01', '\0'};

TEST_F(TlsSessionTest, AnswersAfterAMessageOfTheHandshakeThatIsWhole) {
  Bytes plain;
  const Bytes asked = client_.Say("GET");
  const Bytes update = client_.SayOfHandshake(Bytes(kKeyUpdate, 5));
  ASSERT_TRUE(server_->Receive(asked + update, plain).ok());
  EXPECT_EQ(plain, "GET");
  EXPECT_TRUE(server_->Send("an answer").ok());
}

// OpenSSL accepts no data then. If that were treated as a bug, any client could end the
// process.
TEST_F(TlsSessionTest, AMessageOfTheHandshakeThatIsNotWholeEndsOneConnectionOnly) {
  Bytes plain;
  const Bytes asked = client_.Say("GET");
  const Bytes begun = client_.SayOfHandshake(Bytes(kKeyUpdate, 4));
  ASSERT_TRUE(server_->Receive(asked + begun, plain).ok());
  EXPECT_EQ(plain, "GET");
  EXPECT_TRUE(absl::IsUnavailable(server_->Send("an answer")));
}

}  // namespace
}  // namespace syncline
