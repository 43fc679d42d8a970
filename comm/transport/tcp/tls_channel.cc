#include "comm/transport/tcp/tls_channel.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;

// A handshake has about 500 bytes.
constexpr size_t kMaxHandshakeBytes = size_t{16} << 10;
// Bytes that are read from the socket at once.
constexpr size_t kReadAheadBytes = size_t{128} << 10;

// A peer may renew its keys once a second. This side renews at most every two seconds,
// which stays within that limit even if the network delays some of the bytes.
constexpr absl::Duration kLeastRekeyTime = absl::Seconds(1);
constexpr absl::Duration kOwnRekeyTime = absl::Seconds(2);
constexpr int kRekeysAhead = 2;

// TLS_AES_128_GCM_SHA256
constexpr std::array<unsigned char, 2> kCipher = {0x13, 0x01};

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_SESSION* session) const { SSL_SESSION_free(session); }
  void operator()(BIO_METHOD* method) const { BIO_meth_free(method); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

std::string LastError() {
  std::array<char, 256> text = {};
  const unsigned long code = ERR_get_error();
  if (code == 0) return "the peer broke the protocol";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

// Returns the session from which OpenSSL takes a pre-shared key, or null without memory.
SSL_SESSION* SessionOf(SSL* ssl, const SecretKey& key) {
  Owned<SSL_SESSION> session(SSL_SESSION_new());
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipher.data());
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.bytes().data());
  const bool is_made =
      session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session.get(), bytes, SecretKey::kBytes) == 1 &&
      SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return is_made ? session.release() : nullptr;
}

class TlsChannel final : public Channel {
 public:
  enum class Role { kDialler, kAcceptor };

  TlsChannel(int fd, Role role, const TlsChannelOptions& options)
      : fd_(fd),
        role_(role),
        options_(options),
        rekeyed_at_(options.clock->Now()),
        rekeys_from_(options.clock->Now()) {}

  void Open(SSL_CTX* context, const BIO_METHOD* method);
  void set_key(const PeerKey& key) { key_ = key; }
  void set_key_finder(KeyFinder find_key) { find_key_ = std::move(find_key); }

  absl::StatusOr<bool> Handshake() override;
  const std::string& identity() const override { return identity_; }
  absl::StatusOr<size_t> Read(std::span<const iovec> into) override;
  bool HasBuffered() const override {
    return ahead_begin_ < ahead_end_ || SSL_pending(ssl_.get()) > 0;
  }
  absl::StatusOr<size_t> Write(std::span<const iovec> from) override;
  absl::StatusOr<bool> Flush() override;
  size_t unsent_bytes() const override { return gathered_.size() - gathered_sent_; }

  // Callbacks of OpenSSL.
  static int ReadBio(BIO* bio, char* into, size_t size, size_t* got);
  static int WriteBio(BIO* bio, const char* from, size_t size, size_t* taken);
  static long ControlBio(BIO* bio, int command, long number, void* pointer);
  static int UseKey(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                    size_t* identity_bytes, SSL_SESSION** session);
  static int FindKey(SSL* ssl, const unsigned char* identity, size_t identity_bytes,
                     SSL_SESSION** session);
  static void OnProtocolMessage(int written, int version, int type, const void* bytes,
                                size_t size, SSL* ssl, void* self);

 private:
  static TlsChannel& Of(const SSL* ssl) {
    return *static_cast<TlsChannel*>(SSL_get_app_data(ssl));
  }

  absl::Status Failed(int result, absl::string_view doing);
  absl::Status FillAhead();
  absl::Status Renew();
  absl::Status Seal(const void* data, size_t size);
  bool IsFull() const { return unsent_bytes() >= options_.gather_bytes; }

  const int fd_;
  const Role role_;
  const TlsChannelOptions options_;
  Owned<SSL> ssl_;
  PeerKey key_;         // dialler only, until the handshake is done
  KeyFinder find_key_;  // acceptor only, until the handshake is done
  std::string identity_;
  bool is_unknown_ = false;  // the peer's name is unknown
  bool is_done_ = false;     // the handshake is done
  size_t handshake_bytes_ = 0;
  absl::Status socket_;  // why the socket ended

  std::vector<char> ahead_;  // ciphertext that was read but not yet used
  size_t ahead_begin_ = 0, ahead_end_ = 0;
  std::vector<char> gathered_;  // ciphertext to send
  size_t gathered_sent_ = 0;
  std::vector<char> small_;  // small pieces that will share a record

  uint64_t sealed_since_rekey_ = 0;
  absl::Duration rekeyed_at_;
  absl::Duration rekeys_from_;  // reference time for the peer's renewals
  bool renews_too_often_ = false;
};

void TlsChannel::Open(SSL_CTX* context, const BIO_METHOD* method) {
  ssl_.reset(SSL_new(context));
  BIO* bio = BIO_new(method);
  SYNCLINE_CHECK(ssl_ != nullptr && bio != nullptr);  // fails only without memory
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
  SSL_set_msg_callback(ssl_.get(), OnProtocolMessage);
  SSL_set_msg_callback_arg(ssl_.get(), this);
  if (role_ == Role::kDialler) {
    SSL_set_connect_state(ssl_.get());
    // No certificate is trusted, so a server cannot use one in place of the key.
    SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_set_accept_state(ssl_.get());
  }
}

// ---- Callbacks of OpenSSL ----

int TlsChannel::ReadBio(BIO* bio, char* into, size_t size, size_t* got) {
  auto& self = *static_cast<TlsChannel*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  *got = 0;
  if (self.ahead_begin_ == self.ahead_end_) {
    const absl::Status filled = self.FillAhead();
    if (!filled.ok()) self.socket_ = filled;
    if (self.ahead_begin_ == self.ahead_end_) {
      if (filled.ok()) BIO_set_retry_read(bio);
      return 0;
    }
  }
  *got = std::min(size, self.ahead_end_ - self.ahead_begin_);
  std::memcpy(into, self.ahead_.data() + self.ahead_begin_, *got);
  self.ahead_begin_ += *got;
  return 1;
}

absl::Status TlsChannel::FillAhead() {
  // An unknown peer gets no more memory than a handshake needs.
  const size_t room = is_done_ ? kReadAheadBytes : kMaxHandshakeBytes - handshake_bytes_;
  if (room == 0) return absl::PermissionDeniedError("a handshake of too many bytes");
  if (ahead_.size() < room) ahead_.resize(room);
  const iovec space = {ahead_.data(), room};
  SYNCLINE_ASSIGN_OR_RETURN(const size_t got, ReceiveFrom(fd_, {&space, 1}));
  ahead_begin_ = 0;
  ahead_end_ = got;
  if (!is_done_) handshake_bytes_ += got;
  return absl::OkStatus();
}

int TlsChannel::WriteBio(BIO* bio, const char* from, size_t size, size_t* taken) {
  auto& self = *static_cast<TlsChannel*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  self.gathered_.insert(self.gathered_.end(), from, from + size);
  *taken = size;
  return 1;
}

long TlsChannel::ControlBio(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int TlsChannel::UseKey(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                       size_t* identity_bytes, SSL_SESSION** session) {
  const PeerKey& key = Of(ssl).key_;
  *session = nullptr;
  if (digest != nullptr && !EVP_MD_is_a(digest, "SHA256")) return 0;
  *session = SessionOf(ssl, key.key);
  *identity = reinterpret_cast<const unsigned char*>(key.identity.data());
  *identity_bytes = key.identity.size();
  return *session != nullptr ? 1 : 0;
}

int TlsChannel::FindKey(SSL* ssl, const unsigned char* identity, size_t identity_bytes,
                        SSL_SESSION** session) {
  TlsChannel& self = Of(ssl);
  *session = nullptr;
  const std::string_view name(reinterpret_cast<const char*>(identity), identity_bytes);
  const SecretKey* key = self.find_key_(name);
  if (key == nullptr || key->empty()) {
    self.is_unknown_ = true;
    return 0;
  }
  self.identity_ = name;
  *session = SessionOf(ssl, *key);
  return *session != nullptr ? 1 : 0;
}

// NOLINTNEXTLINE(readability-function-size): OpenSSL says what it is called with.
void TlsChannel::OnProtocolMessage(int written, int, int type, const void* bytes,
                                   size_t size, SSL*, void* channel) {
  auto& self = *static_cast<TlsChannel*>(channel);
  if (written != 0 || type != SSL3_RT_HANDSHAKE || size == 0) return;
  if (*static_cast<const unsigned char*>(bytes) != SSL3_MT_KEY_UPDATE) return;
  const absl::Duration now = self.options_.clock->Now();
  const absl::Duration earliest = now - kRekeysAhead * kLeastRekeyTime;
  self.rekeys_from_ = std::max(self.rekeys_from_, earliest) + kLeastRekeyTime;
  self.renews_too_often_ |= self.rekeys_from_ > now;
}

// ---- Handshake, reading and writing ----

absl::Status TlsChannel::Failed(int result, absl::string_view doing) {
  const int error = SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    return absl::OkStatus();
  }
  if (!socket_.ok()) return socket_;
  if (is_unknown_) return UnknownIdentity();
  if (error == SSL_ERROR_ZERO_RETURN) {
    return absl::UnavailableError("the peer closed the connection");
  }
  const std::string why = absl::StrCat(doing, ": ", LastError());
  return is_done_ ? absl::DataLossError(why) : absl::PermissionDeniedError(why);
}

absl::StatusOr<bool> TlsChannel::Handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  absl::Status status = result == 1 ? absl::OkStatus() : Failed(result, "TLS handshake");
  // Send what was written: the answer, or the alert that says what is wrong.
  const absl::StatusOr<bool> flushed = Flush();
  if (!status.ok()) return status;
  if (!flushed.ok()) return flushed.status();
  if (result != 1) return false;
  // Only this proves the peer. OpenSSL would also ask for a certificate, and accept none,
  // if the key were not used; but this check does not rely on that.
  if (SSL_session_reused(ssl_.get()) != 1 || SSL_version(ssl_.get()) != TLS1_3_VERSION) {
    return absl::PermissionDeniedError("TLS handshake: without the shared key");
  }
  if (role_ == Role::kDialler) identity_ = key_.identity;
  key_.key.Erase();
  find_key_ = nullptr;
  is_done_ = true;
  gathered_.reserve(options_.gather_bytes + 2 * kRecordBytes);
  return true;
}

absl::StatusOr<size_t> TlsChannel::Read(std::span<const iovec> into) {
  const iovec& space = into.front();
  ERR_clear_error();
  size_t got = 0;
  const int result = SSL_read_ex(ssl_.get(), space.iov_base, space.iov_len, &got);
  if (renews_too_often_) {
    return absl::ResourceExhaustedError("the peer renews its keys too often");
  }
  if (result == 1) return got;
  SYNCLINE_RETURN_IF_ERROR(Failed(result, "TLS"));
  return 0;
}

absl::Status TlsChannel::Renew() {
  const absl::Duration now = options_.clock->Now();
  // A peer refuses more frequent renewals.
  if (now - rekeyed_at_ < kOwnRekeyTime) return absl::OkStatus();
  if (sealed_since_rekey_ < options_.rekey_bytes &&
      now - rekeyed_at_ < options_.rekey_after) {
    return absl::OkStatus();
  }
  sealed_since_rekey_ = 0;
  rekeyed_at_ = now;
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("renewing TLS keys: ", LastError()));
}

absl::Status TlsChannel::Seal(const void* data, size_t size) {
  if (size == 0) return absl::OkStatus();
  ERR_clear_error();
  size_t taken = 0;
  const int result = SSL_write_ex(ssl_.get(), data, size, &taken);
  sealed_since_rekey_ += size;
  if (result == 1 && taken == size) return absl::OkStatus();
  // SSL_write_ex never has to wait, because WriteBio takes everything.
  const absl::Status status = Failed(result, "TLS");
  return status.ok() ? absl::InternalError("TLS: a write that waits") : status;
}

absl::StatusOr<size_t> TlsChannel::Write(std::span<const iovec> from) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_flushed, Flush());
  if (!is_flushed && IsFull()) return 0;
  SYNCLINE_RETURN_IF_ERROR(Renew());
  size_t taken = 0;
  small_.clear();
  for (const iovec& piece : from) {
    const char* data = static_cast<const char*>(piece.iov_base);
    size_t left = piece.iov_len;
    while (left > 0 && !IsFull()) {
      if (small_.empty() && left >= kRecordBytes) {
        const size_t room = options_.gather_bytes - unsent_bytes() + kRecordBytes;
        const size_t bytes = std::min(left, room) / kRecordBytes * kRecordBytes;
        SYNCLINE_RETURN_IF_ERROR(Seal(data, bytes));
        data += bytes, left -= bytes, taken += bytes;
        continue;
      }
      const size_t bytes = std::min(left, kRecordBytes - small_.size());
      small_.insert(small_.end(), data, data + bytes);
      data += bytes, left -= bytes, taken += bytes;
      if (small_.size() < kRecordBytes) continue;
      SYNCLINE_RETURN_IF_ERROR(Seal(small_.data(), small_.size()));
      small_.clear();
    }
  }
  SYNCLINE_RETURN_IF_ERROR(Seal(small_.data(), small_.size()));
  SYNCLINE_RETURN_IF_ERROR(Flush().status());
  return taken;
}

absl::StatusOr<bool> TlsChannel::Flush() {
  while (unsent_bytes() > 0) {
    const iovec rest = {gathered_.data() + gathered_sent_, unsent_bytes()};
    SYNCLINE_ASSIGN_OR_RETURN(const size_t sent, SendTo(fd_, {&rest, 1}));
    gathered_sent_ += sent;
    if (sent > 0) continue;
    if (gathered_sent_ > options_.gather_bytes) {  // limits its growth
      gathered_.erase(gathered_.begin(), gathered_.begin() + gathered_sent_);
      gathered_sent_ = 0;
    }
    return false;
  }
  gathered_.clear();
  gathered_sent_ = 0;
  return true;
}

// ---- Shared state ----

class OpenSslContext final : public TlsContext {
 public:
  explicit OpenSslContext(const TlsChannelOptions& options) : options_(options) {}

  absl::Status Open() {
    context_.reset(SSL_CTX_new(TLS_method()));
    if (Method() == nullptr || context_ == nullptr) {
      return absl::InternalError(absl::StrCat("OpenSSL: ", LastError()));
    }
    SSL_CTX* context = context_.get();
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_psk_use_session_callback(context, TlsChannel::UseKey);
    SSL_CTX_set_psk_find_session_callback(context, TlsChannel::FindKey);
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
        SSL_CTX_set1_groups_list(context, "X25519") != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1) {
      return absl::InternalError(absl::StrCat("setting up TLS 1.3: ", LastError()));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Channel> Dial(int fd, const PeerKey& key) override {
    auto channel = std::make_unique<TlsChannel>(fd, TlsChannel::Role::kDialler, options_);
    channel->set_key(key);
    channel->Open(context_.get(), Method());
    return channel;
  }

  std::unique_ptr<Channel> Accept(int fd, KeyFinder find_key) override {
    auto channel =
        std::make_unique<TlsChannel>(fd, TlsChannel::Role::kAcceptor, options_);
    channel->set_key_finder(std::move(find_key));
    channel->Open(context_.get(), Method());
    return channel;
  }

 private:
  // The process has one, which is never freed: connections may outlive their transport,
  // and OpenSSL has few type numbers for them.
  static const BIO_METHOD* Method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* made =
          BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "syncline");
      if (made == nullptr) return made;
      BIO_meth_set_read_ex(made, TlsChannel::ReadBio);
      BIO_meth_set_write_ex(made, TlsChannel::WriteBio);
      BIO_meth_set_ctrl(made, TlsChannel::ControlBio);
      return made;
    }();
    return method;
  }

  const TlsChannelOptions options_;
  Owned<SSL_CTX> context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Create(
    const TlsChannelOptions& options) {
  SYNCLINE_CHECK(options.clock != nullptr);
  auto context = std::make_unique<OpenSslContext>(options);
  SYNCLINE_RETURN_IF_ERROR(context->Open());
  return context;
}

std::string TlsLibrary() {
  return absl::StrCat("OpenSSL ", OpenSSL_version(OPENSSL_VERSION_STRING));
}

}  // namespace syncline
