#include "comm/transport/tcp/member_key.h"

#include <openssl/hmac.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "comm/base/check.h"

namespace syncline {
namespace {

constexpr std::string_view kIdentityMagic = "SLW2";
constexpr std::string_view kKeyLabel = "syncline/2 psk";

void AppendNumber(std::string& bytes, uint32_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

}  // namespace

std::string EncodeIdentity(const MemberIdentity& identity) {
  std::string bytes(kIdentityMagic);
  for (const uint32_t number : {identity.job, identity.rank, identity.incarnation}) {
    AppendNumber(bytes, number);
  }
  return bytes;
}

std::optional<MemberIdentity> ParseIdentity(std::string_view bytes) {
  std::array<uint32_t, 3> numbers;
  if (bytes.size() != kIdentityMagic.size() + sizeof(numbers)) return std::nullopt;
  if (!bytes.starts_with(kIdentityMagic)) return std::nullopt;
  std::memcpy(numbers.data(), bytes.data() + kIdentityMagic.size(), sizeof(numbers));
  return MemberIdentity{numbers[0], numbers[1], numbers[2]};
}

SecretKey DrawKey() {
  std::array<std::byte, SecretKey::kBytes> bytes;
  ssize_t drawn = -1;
  do {
    drawn = getrandom(bytes.data(), bytes.size(), 0);
  } while (drawn < 0 && errno == EINTR);
  SYNCLINE_CHECK(drawn == static_cast<ssize_t>(bytes.size()));
  const SecretKey key = *SecretKey::From(bytes);
  explicit_bzero(bytes.data(), bytes.size());
  return key;
}

SecretKey DeriveMemberKey(const SecretKey& worker_key, const MemberIdentity& worker,
                          const ServerIdentity& server) {
  SYNCLINE_CHECK(!worker_key.empty());
  std::string info(kKeyLabel);
  for (const uint32_t number :
       {worker.job, worker.rank, worker.incarnation, server.server, server.incarnation}) {
    AppendNumber(info, number);
  }
  // Number of the expansion's first block, which has as many bytes as a key.
  info += '\x01';
  std::array<std::byte, SecretKey::kBytes> bytes;
  unsigned int size = 0;
  SYNCLINE_CHECK(HMAC(EVP_sha256(), worker_key.bytes().data(), SecretKey::kBytes,
                      reinterpret_cast<const unsigned char*>(info.data()), info.size(),
                      reinterpret_cast<unsigned char*>(bytes.data()), &size) != nullptr);
  SYNCLINE_CHECK(size == bytes.size());
  const SecretKey key = *SecretKey::From(bytes);
  explicit_bzero(bytes.data(), bytes.size());
  return key;
}

}  // namespace syncline
