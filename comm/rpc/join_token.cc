#include "comm/rpc/join_token.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/rpc/address.h"
#include "comm/rpc/announcement.h"

namespace syncline {
namespace {

constexpr std::string_view kVersion = "sl1";
constexpr size_t kIdDigits = 12;
constexpr size_t kSecretDigits = 32;
constexpr size_t kAuthorityDigits = 64;
constexpr size_t kMaxAddressBytes = 300;  // a DNS name has 253

absl::Status Wrong(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      absl::string_view(what.data(), what.size()),
      "; a token is sl1.ID.SECRET.AUTHORITY@HOST:PORT, as `syncline certs token` prints "
      "it: copy all of it"));
}

bool IsHexadecimal(std::string_view digits, size_t count) {
  return digits.size() == count && std::all_of(digits.begin(), digits.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// Removes the text before `end` from the front, and returns it. Returns an empty string
// if there is no `end`.
std::string_view TakeUntil(char end, std::string_view& rest) {
  const size_t at = rest.find(end);
  if (at == std::string_view::npos) return {};
  const std::string_view taken = rest.substr(0, at);
  rest.remove_prefix(at + 1);
  return taken;
}

bool IsAddress(std::string_view address) {
  if (address.size() > kMaxAddressBytes) return false;
  const bool is_plain = std::all_of(address.begin(), address.end(),
                                    [](char c) { return c > ' ' && c < '\x7f'; });
  const absl::StatusOr<HostPort> parsed =
      ParseHostPort(absl::string_view(address.data(), address.size()));
  return is_plain && parsed.ok() && !parsed->host.empty() && parsed->port != 0 &&
         parsed->ToString() == address;
}

std::string RandomDigits(size_t count) {
  std::array<unsigned char, kSecretDigits / 2> bytes;
  SYNCLINE_CHECK(count / 2 <= bytes.size());
  SYNCLINE_CHECK(RAND_bytes(bytes.data(), static_cast<int>(count / 2)) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), count / 2));
}

}  // namespace

absl::StatusOr<JoinToken> ParseJoinToken(std::string_view text) {
  if (TakeUntil('.', text) != kVersion) return Wrong("not a token of this version");
  JoinToken token;
  token.id = TakeUntil('.', text);
  token.secret = TakeUntil('.', text);
  token.authority = TakeUntil('@', text);
  token.address = text;
  if (!IsHexadecimal(token.id, kIdDigits) ||
      !IsHexadecimal(token.secret, kSecretDigits) ||
      !IsHexadecimal(token.authority, kAuthorityDigits)) {
    return Wrong("a part of this token is missing or cut");
  }
  if (!IsAddress(token.address)) return Wrong("this token ends without an address");
  return token;
}

std::string Written(const JoinToken& token) {
  return absl::StrCat(std::string(kVersion), ".", token.id, ".", token.secret, ".",
                      token.authority, "@", token.address);
}

JoinToken DrawJoinToken() {
  return {.id = RandomDigits(kIdDigits), .secret = RandomDigits(kSecretDigits)};
}

std::string HashOfSecret(std::string_view secret) {
  return absl::BytesToHexString(Sha256(secret));
}

bool IsSame(std::string_view one, std::string_view other) {
  return one.size() == other.size() &&
         CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace syncline
