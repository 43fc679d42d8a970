// The tokens that a directory of `syncline certs` has issued, in the file `tokens.json`,
// which only its user can read. It has no secrets, only the SHA-256 of each.
//
//   SYNCLINE_RETURN_IF_ERROR(AddToken("certs", {id, HashOfSecret(secret)}, terms, now));
//   SYNCLINE_ASSIGN_OR_RETURN(TokenUse use, RedeemToken("certs", claim, now));
//   SYNCLINE_ASSIGN_OR_RETURN(pem, KeepCertificate("certs", claim, pem, now));
//
// One key counts as one use. A request that is repeated with the same key, because the
// answer was lost, returns the same certificate and does not count again. So a revoked
// certificate stays revoked. A use is on the disk before the client gets an answer.
// Expired tokens are dropped with the next change.
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
inline constexpr size_t kMaxTokens = 1024;  // unexpired ones

struct TokenTerms {
  Identity who = {};      // without a cluster: the directory's
  absl::Time until = {};  // expiry of the token
  double hours = 24;      // validity of its certificates
  uint32_t uses = 1;      // number of machines
};

struct TokenKey {
  std::string id = {};
  std::string secret_hash = {};  // HashOfSecret
};

// Fails with ResourceExhausted when there are too many unexpired tokens.
absl::Status AddToken(const std::string& directory, const TokenKey& token,
                      const TokenTerms& terms, absl::Time now);

// The request of a machine: its token, and the key to be certified (KeyOfRequest).
struct TokenClaim {
  std::string id = {};
  std::string secret = {};
  std::string key = {};
};

// Fails with PermissionDenied when the token is unknown or expired, or its secret is
// wrong. The error does not reveal whether the id exists.
absl::Status CheckToken(const std::string& directory, const TokenClaim& claim,
                        absl::Time now);

struct TokenUse {
  TokenTerms terms = {};         // of the token
  std::string certificate = {};  // given to this key earlier; empty: none yet
};

// Checks like CheckToken. Also fails with PermissionDenied when the number of other keys
// that used the token has reached its limit.
absl::StatusOr<TokenUse> RedeemToken(const std::string& directory,
                                     const TokenClaim& claim, absl::Time now);

// Stores `certificate` before it is sent to a machine that RedeemToken admitted. Returns
// the certificate to send: this one, or the one of an earlier request with the same key.
absl::StatusOr<std::string> KeepCertificate(const std::string& directory,
                                            const TokenClaim& claim,
                                            const std::string& certificate,
                                            absl::Time now);

}  // namespace syncline::certs
