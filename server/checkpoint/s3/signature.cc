#include "server/checkpoint/s3/signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

constexpr absl::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::string Encode(absl::string_view text, absl::string_view also_plain) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = absl::ascii_isalnum(byte) || c == '-' || c == '.' || c == '_' ||
                          c == '~' || absl::StrContains(also_plain, c);
    if (is_plain) {
      encoded += c;
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", byte);
    }
  }
  return encoded;
}

std::string Hmac(absl::string_view key, absl::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum = {};
  unsigned int size = 0;
  SYNCLINE_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                      reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                      sum.data(), &size) != nullptr);
  return {reinterpret_cast<const char*>(sum.data()), size};
}

// Removes spaces at both ends, and replaces each run of spaces by one.
std::string Trimmed(absl::string_view value) {
  return absl::StrJoin(absl::StrSplit(value, ' ', absl::SkipEmpty()), " ");
}

}  // namespace

std::string UriEncode(absl::string_view text) { return Encode(text, ""); }

std::string UriEncodePath(absl::string_view path) { return Encode(path, "/"); }

std::string CanonicalQuery(const std::map<std::string, std::string>& query) {
  std::map<std::string, std::string> encoded;
  for (const auto& [name, value] : query) encoded[UriEncode(name)] = UriEncode(value);
  return absl::StrJoin(encoded, "&", absl::PairFormatter("="));
}

std::string Sha256Hex(ByteView bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum = {};
  unsigned int size = 0;
  SYNCLINE_CHECK(EVP_Digest(bytes.data(), bytes.size(), sum.data(), &size, EVP_sha256(),
                            nullptr) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(sum.data()), size});
}

std::string AmzDate(absl::Time time) {
  return absl::FormatTime("%Y%m%dT%H%M%SZ", time, absl::UTCTimeZone());
}

std::string Authorization(const SignedRequest& request, const SigningScope& scope,
                          const S3Credentials& credentials, absl::Time time) {
  std::vector<std::string> names;
  std::string headers;
  for (const auto& [name, value] : request.headers) {
    names.push_back(name);
    absl::StrAppend(&headers, name, ":", Trimmed(value), "\n");
  }
  const std::string signed_headers = absl::StrJoin(names, ";");
  const std::string canonical =
      absl::StrCat(request.method, "\n", request.path, "\n", request.query, "\n", headers,
                   "\n", signed_headers, "\n", request.payload_sha256);
  const std::string date = AmzDate(time);
  const std::string day = date.substr(0, 8);
  const std::string where =
      absl::StrCat(day, "/", scope.region, "/", scope.service, "/aws4_request");
  const std::string to_sign =
      absl::StrCat(kAlgorithm, "\n", date, "\n", where, "\n",
                   Sha256Hex(std::as_bytes(std::span(canonical))));
  std::string key = Hmac(absl::StrCat("AWS4", credentials.secret), day);
  key = Hmac(key, scope.region);
  key = Hmac(key, scope.service);
  key = Hmac(key, "aws4_request");
  return absl::StrCat(kAlgorithm, " Credential=", credentials.key_id, "/", where,
                      ",SignedHeaders=", signed_headers,
                      ",Signature=", absl::BytesToHexString(Hmac(key, to_sign)));
}

}  // namespace syncline
