#include "server/admin/read_token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

constexpr std::string_view kCookieLabel = "syncline admin port cookie";
constexpr std::string_view kMarkLabel = "syncline admin port cookie's name";
constexpr size_t kMarkDigits = 8;

absl::string_view View(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

// Returns whether RFC 6750 permits the character in a token. None of these change in a
// header or a cookie.
bool MayBeInAToken(char c) {
  constexpr std::string_view kOthers = "-._~+/=";
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         kOthers.find(c) != std::string_view::npos;
}

// Decodes application/x-www-form-urlencoded. Invalid codes are kept as they are.
std::string Decoded(std::string_view value) {
  std::string decoded;
  for (size_t i = 0; i < value.size(); ++i) {
    const bool is_code = value[i] == '%' && i + 2 < value.size() &&
                         absl::ascii_isxdigit(static_cast<unsigned char>(value[i + 1])) &&
                         absl::ascii_isxdigit(static_cast<unsigned char>(value[i + 2]));
    if (is_code) {
      decoded += absl::HexStringToBytes(View(value.substr(i + 1, 2)));
      i += 2;
    } else {
      decoded += value[i] == '+' ? ' ' : value[i];
    }
  }
  return decoded;
}

// Returns an HMAC-SHA-256 in hexadecimal digits, from which the token cannot be computed.
std::string DerivedFrom(std::string_view token, std::string_view label) {
  std::array<unsigned char, 32> derived = {};
  unsigned int size = 0;
  SYNCLINE_CHECK(HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                      reinterpret_cast<const unsigned char*>(label.data()), label.size(),
                      derived.data(), &size) != nullptr);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(derived.data()), derived.size()));
}

}  // namespace

absl::StatusOr<ReadToken> ReadToken::Parse(std::string_view contents) {
  const absl::string_view token = absl::StripAsciiWhitespace(View(contents));
  if (token.size() < kMinBytes || token.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("holds ", token.size(), " characters; a token has ", kMinBytes,
                     " to ", kMaxBytes, ", such as those of `openssl rand -hex 32`"));
  }
  if (!std::all_of(token.begin(), token.end(), MayBeInAToken)) {
    return absl::InvalidArgumentError(
        "holds other characters than a token has, which is one word of letters, digits "
        "and -._~+/=, such as that of `openssl rand -hex 32`");
  }
  return ReadToken(std::string_view(token.data(), token.size()));
}

ReadToken::ReadToken(std::string_view token)
    : digest_(DigestOf(token)),
      cookie_(DerivedFrom(token, kCookieLabel)),
      cookie_digest_(DigestOf(cookie_)),
      mark_(DerivedFrom(token, kMarkLabel).substr(0, kMarkDigits)) {}

ReadToken::Digest ReadToken::DigestOf(std::string_view bytes) {
  Digest digest = {};
  unsigned int size = 0;
  SYNCLINE_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size,
                            EVP_sha256(), nullptr) == 1);
  return digest;
}

bool ReadToken::IsSame(std::string_view shown) const {
  const Digest digest = DigestOf(shown);
  return CRYPTO_memcmp(digest.data(), digest_.data(), digest.size()) == 0;
}

bool ReadToken::IsShownBy(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(View(authorization), View(kScheme))) return false;
  const absl::string_view shown =
      absl::StripAsciiWhitespace(View(authorization.substr(kScheme.size())));
  return IsSame(std::string_view(shown.data(), shown.size()));
}

bool ReadToken::IsInCookies(std::string_view cookies, std::string_view name) const {
  for (absl::string_view pair : absl::StrSplit(View(cookies), ';')) {
    pair = absl::StripAsciiWhitespace(pair);
    if (!absl::StartsWith(pair, absl::StrCat(View(name), "="))) continue;
    pair.remove_prefix(name.size() + 1);
    const Digest digest = DigestOf(std::string_view(pair.data(), pair.size()));
    if (CRYPTO_memcmp(digest.data(), cookie_digest_.data(), digest.size()) == 0) {
      return true;
    }
  }
  return false;
}

bool ReadToken::IsInForm(std::string_view body) const {
  for (const absl::string_view pair : absl::StrSplit(View(body), '&')) {
    constexpr absl::string_view kField = "token=";
    if (!absl::StartsWith(pair, kField)) continue;
    const absl::string_view value = pair.substr(kField.size());
    const std::string decoded = Decoded(std::string_view(value.data(), value.size()));
    const absl::string_view shown = absl::StripAsciiWhitespace(decoded);
    return IsSame(std::string_view(shown.data(), shown.size()));
  }
  return false;
}

}  // namespace syncline
