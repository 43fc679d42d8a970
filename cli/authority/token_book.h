// The tokens that a directory of `syncline certs` has given out: a file `tokens.json`,
// which only its user can read, and which has no secret, only the SHA-256 of each.
//
//   SYNCLINE_RETURN_IF_ERROR(AddToken("certs", {id, HashOfSecret(secret)}, terms, now));
//   SYNCLINE_ASSIGN_OR_RETURN(TokenUse use, RedeemToken("certs", claim, now));
//   SYNCLINE_ASSIGN_OR_RETURN(pem, KeepCertificate("certs", claim, pem, now));
//
// A use is one key: anyone who asks again with the same key, because the answer was lost,
// is given the same certificate, so that one that was taken back stays so, and it counts
// once. A use is on the disk before anybody hears of it.
// Tokens that have ended are forgotten with the next change.
//
// Thread safety: any thread, and any process.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/rpc/identity.h"

namespace syncline::certs {

inline constexpr uint32_t kMaxTokenUses = 1024;
inline constexpr size_t kMaxTokens = 1024;  // that have not ended

struct TokenTerms {
  Identity who = {};      // without a cluster: that of the directory
  absl::Time until = {};  // the end of the token
  double hours = 24;      // how long its certificates are valid
  uint32_t uses = 1;      // how many machines
};

struct TokenKey {
  std::string id = {};
  std::string secret_hash = {};  // HashOfSecret
};

// ResourceExhausted when there are too many that have not ended.
absl::Status AddToken(const std::string& directory, const TokenKey& token,
                      const TokenTerms& terms, absl::Time now);

// What a machine shows: its token, and the key that it asks for (KeyOfRequest).
struct TokenClaim {
  std::string id = {};
  std::string secret = {};
  std::string key = {};
};

// PermissionDenied when the token is not known, its secret is another, or it has ended. What
// a stranger hears does not tell whether there is such an id.
absl::Status CheckToken(const std::string& directory, const TokenClaim& claim,
                        absl::Time now);

struct TokenUse {
  TokenTerms terms = {};
  std::string certificate = {};  // that this key was given; empty: none yet
};

// The same, and PermissionDenied when as many other keys have used it as it allows.
absl::StatusOr<TokenUse> RedeemToken(const std::string& directory,
                                     const TokenClaim& claim, absl::Time now);

// Before `certificate` is given to whom RedeemToken let in. Returns what is to be given:
// that, or what another request with this key came first with.
absl::StatusOr<std::string> KeepCertificate(const std::string& directory,
                                            const TokenClaim& claim,
                                            const std::string& certificate,
                                            absl::Time now);

}  // namespace syncline::certs
