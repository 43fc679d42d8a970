// The token by which a new machine gets its first certificate (docs/tls.md):
//
//   sl1.ID.SECRET.AUTHORITY@HOST:PORT
//
// ID names it to people, SECRET is what counts, AUTHORITY is the fingerprint of the CA's
// certificate, by which the machine knows who answers at HOST:PORT before it says anything.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const JoinToken token, ParseJoinToken(argument));
//
// Pure but for DrawJoinToken; from any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

struct JoinToken {
  std::string id = {};         // 12 hexadecimal digits, in lower case, as all of them
  std::string secret = {};     // 32 of them: 128 random bits
  std::string authority = {};  // 64 of them: FingerprintOf its certificate
  std::string address = {};    // HOST:PORT of `syncline certs serve`
  friend bool operator==(const JoinToken&, const JoinToken&) = default;
};

// InvalidArgument says what is wrong, and repeats nothing of the token: errors go to logs.
// There is one way to write a token.
absl::StatusOr<JoinToken> ParseJoinToken(std::string_view text);
std::string Written(const JoinToken& token);

// Another one each time, without authority and address.
JoinToken DrawJoinToken();

// What is kept of a secret: anyone who reads it cannot use it. Hexadecimal.
std::string HashOfSecret(std::string_view secret);

// In a time that does not tell where they differ.
bool IsSame(std::string_view one, std::string_view other);

}  // namespace syncline
