// The token with which a new machine gets its first certificate (docs/tls.md):
//
//   sl1.ID.SECRET.AUTHORITY@HOST:PORT
//
// ID identifies the token to people. SECRET authorizes. AUTHORITY is the fingerprint of
// the CA's certificate: with it the machine verifies the peer at HOST:PORT before it
// sends anything.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const JoinToken token, ParseJoinToken(argument));
//
// Pure functions except DrawJoinToken; any thread may call them.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

struct JoinToken {
  std::string id = {};         // 12 lower-case hexadecimal digits
  std::string secret = {};     // 32 lower-case hexadecimal digits: 128 random bits
  std::string authority = {};  // 64 lower-case hexadecimal digits (FingerprintOf)
  std::string address = {};    // HOST:PORT of `syncline certs serve`
  friend bool operator==(const JoinToken&, const JoinToken&) = default;
};

// Fails with InvalidArgument, which says what is wrong but never repeats a part of the
// token, since errors are logged. A token has exactly one valid spelling.
absl::StatusOr<JoinToken> ParseJoinToken(std::string_view text);
std::string Written(const JoinToken& token);

// Returns a new random token, without authority and address.
JoinToken DrawJoinToken();

// Returns the hexadecimal hash of a secret, for storage. It cannot be used as a secret.
std::string HashOfSecret(std::string_view secret);

// Compares in constant time.
bool IsSame(std::string_view one, std::string_view other);

}  // namespace syncline
