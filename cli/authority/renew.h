// A machine's next certificate: by the one that it has, with a new key that stays here.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncline::certs {

struct RenewOrder {
  std::string base;     // PATH of PATH.crt and PATH.key; ".crt" at its end is left out
  std::string address;  // HOST:PORT of `syncline certs serve`
  std::string ca_file = {};  // empty: ca.crt beside the pair
  // To connect, and once more to be answered.
  absl::Duration limit = absl::Seconds(20);
};

// Failure::kUsage for files that cannot be read or do not belong together, and for a
// coordinator's certificate, which is renewed where the authority is.
absl::Status CheckRenewable(const RenewOrder& order);

// Replaces the pair. The next key is in PATH.next.key before anything is asked, so that
// whoever is killed in the middle asks again for the same one; of two that renew the same
// pair the second waits. Failure::kUsage as above; PermissionDenied when the authority does
// not renew this certificate, which trying again does not change; Unavailable otherwise.
absl::Status Renew(const RenewOrder& order);

// What the old key signs (proto/join.proto).
std::string RenewalMessage(std::string_view authority, std::string_view request);

// When to renew a certificate of that life, of which kBackdated does not count: with a third
// of it left, and up to a twelfth earlier, by `serial`, so that machines which joined
// together do not come together.
absl::Time WhenToRenew(absl::Time from, absl::Time until, std::string_view serial);

}  // namespace syncline::certs
