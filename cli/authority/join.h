// The new machine's side: from a token to a certificate, with a key that stays here.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncline::certs {

struct JoinOrder {
  std::string token = {};           // as `syncline certs token` printed it
  std::string directory = "certs";  // made with mode 0700 if it is not there
  absl::Duration limit = absl::Seconds(20);
};

// The path of what was made, DIRECTORY/NAME, without ".crt"; a pair of that name is
// replaced. DIRECTORY/ca.crt comes with it. Failure::kUsage, before the token is used, for
// what is no token and for a directory of another authority or where nothing can be
// written. PermissionDenied when the token is worth nothing, or who answers is not of its
// authority.
absl::StatusOr<std::string> Join(const JoinOrder& order);

}  // namespace syncline::certs
