// Fuzzes tokens of `syncline certs token`.
//
//   offset  bytes
//   0       rest   a token
#include <string>

#include "absl/status/status.h"
#include "comm/base/check.h"
#include "comm/base/printable.h"
#include "comm/rpc/join_token.h"
#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {
namespace {

Bytes Seed(std::string_view text) {
  Bytes seed;
  Append(seed, std::as_bytes(std::span(text)));
  return seed;
}

}  // namespace

std::vector<Bytes> Seeds() {
  JoinToken token = {.id = std::string(12, 'a'),
                     .secret = std::string(32, '0'),
                     .authority = std::string(64, '9'),
                     .address = "ca.example:7073"};
  std::vector<Bytes> seeds = {Seed(Written(token)), Seed("sl1...@"), Seed("")};
  token.address = "[2001:db8::1]:1";
  seeds.push_back(Seed(Written(token)));
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  const std::string text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<JoinToken> token = ParseJoinToken(text);
  if (token.ok()) {
    // Each token has only one text.
    SYNCLINE_CHECK(Written(*token) == text);
    SYNCLINE_CHECK(IsPrintable(text));
    return 0;
  }
  SYNCLINE_CHECK(absl::IsInvalidArgument(token.status()));
  // Errors are logged, so they must not contain the secret.
  const std::string said(token.status().message());
  SYNCLINE_CHECK(IsPrintable(said));
  const size_t secret = text.find("00000000");
  SYNCLINE_CHECK(secret == std::string::npos ||
                 said.find(text.substr(secret, 8)) == std::string::npos);
  return 0;
}
