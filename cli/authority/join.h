// The new machine's side of joining: exchanges a token for a certificate. The private key
// never leaves this machine.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncline::certs {

struct JoinOrder {
  std::string token = {};           // as printed by `syncline certs token`
  std::string directory = "certs";  // created with mode 0700 if missing
  absl::Duration limit = absl::Seconds(20);
};

// Writes the new pair DIRECTORY/NAME.crt and .key, replacing one of that name, and
// DIRECTORY/ca.crt. Returns DIRECTORY/NAME.
//
// Fails with Failure::kUsage, before the token is used, if the token is malformed, or if
// the directory belongs to another authority or cannot be written. Fails with
// PermissionDenied if the token is not accepted, or if the peer does not belong to the
// token's authority.
absl::StatusOr<std::string> Join(const JoinOrder& order);

}  // namespace syncline::certs
