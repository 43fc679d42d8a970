#include "comm/transport/tcp/plain_channel.h"

#include <algorithm>
#include <array>
#include <utility>

#include "comm/base/check.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr std::string_view kGreeting = "SLPLAIN2";
constexpr size_t kMaxIdentityBytes = 255;

class PlainChannel : public Channel {
 public:
  explicit PlainChannel(int fd) : fd_(fd) {}

  const std::string& identity() const override { return identity_; }
  absl::StatusOr<size_t> Read(std::span<const iovec> into) override {
    return ReceiveFrom(fd_, into);
  }
  bool HasBuffered() const override { return false; }

 protected:
  const int fd_;
  std::string identity_;
};

class PlainDialler final : public PlainChannel {
 public:
  PlainDialler(int fd, const PeerKey& key) : PlainChannel(fd), unsent_(kGreeting) {
    SYNCLINE_CHECK(key.identity.size() <= kMaxIdentityBytes);
    identity_ = key.identity;
    unsent_ += static_cast<char>(identity_.size());
    unsent_ += identity_;
  }

  absl::StatusOr<bool> Handshake() override { return Flush(); }
  absl::StatusOr<size_t> Write(std::span<const iovec> from) override {
    return SendTo(fd_, from);
  }
  absl::StatusOr<bool> Flush() override {
    if (unsent_.empty()) return true;
    const iovec all = {unsent_.data(), unsent_.size()};
    SYNCLINE_ASSIGN_OR_RETURN(const size_t sent, SendTo(fd_, {&all, 1}));
    unsent_.erase(0, sent);
    return unsent_.empty();
  }
  size_t unsent_bytes() const override { return unsent_.size(); }

 private:
  std::string unsent_;  // unsent part of the greeting
};

class PlainAcceptor final : public PlainChannel {
 public:
  PlainAcceptor(int fd, KeyFinder find_key)
      : PlainChannel(fd), find_key_(std::move(find_key)) {}

  absl::StatusOr<bool> Handshake() override {
    while (read_ < Wanted()) {
      // Reads no byte beyond the greeting.
      const iovec rest = {bytes_.data() + read_, Wanted() - read_};
      SYNCLINE_ASSIGN_OR_RETURN(const size_t got, ReceiveFrom(fd_, {&rest, 1}));
      if (got == 0) return false;
      read_ += got;
      const std::string_view said(bytes_.data(), std::min(read_, kGreeting.size()));
      if (!kGreeting.starts_with(said)) {
        return absl::PermissionDeniedError("not a greeting of plain connections");
      }
    }
    constexpr size_t kHead = kGreeting.size() + 1;
    identity_.assign(bytes_.data() + kHead, Wanted() - kHead);
    if (find_key_(identity_) == nullptr) return UnknownIdentity();
    return true;
  }
  absl::StatusOr<size_t> Write(std::span<const iovec> from) override {
    return SendTo(fd_, from);
  }
  absl::StatusOr<bool> Flush() override { return true; }
  size_t unsent_bytes() const override { return 0; }

 private:
  // Returns the bytes of the greeting as far as known: the length of the identity comes
  // after the fixed part.
  size_t Wanted() const {
    const bool has_length = read_ > kGreeting.size();
    return kGreeting.size() + 1 +
           (has_length ? static_cast<uint8_t>(bytes_[kGreeting.size()]) : 0);
  }

  const KeyFinder find_key_;
  std::array<char, kGreeting.size() + 1 + kMaxIdentityBytes> bytes_;
  size_t read_ = 0;
};

}  // namespace

std::unique_ptr<Channel> DialPlain(int fd, const PeerKey& key) {
  return std::make_unique<PlainDialler>(fd, key);
}

std::unique_ptr<Channel> AcceptPlain(int fd, KeyFinder find_key) {
  return std::make_unique<PlainAcceptor>(fd, std::move(find_key));
}

}  // namespace syncline
