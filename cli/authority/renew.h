// Renews a machine's certificate. The present one authorizes the request; the new private
// key never leaves this machine.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncline::certs {

struct RenewOrder {
  std::string base;          // PATH of PATH.crt and PATH.key; a final ".crt" is ignored
  std::string address;       // HOST:PORT of `syncline certs serve`
  std::string ca_file = {};  // empty: ca.crt beside the pair
  // Applies to connecting, and again to waiting for the answer.
  absl::Duration limit = absl::Seconds(20);
};

// Fails with Failure::kUsage if files cannot be read or do not belong together. Also
// fails for a coordinator's certificate, which is renewed on the authority's machine.
absl::Status CheckRenewable(const RenewOrder& order);

// Replaces the pair. Stores the new key in PATH.next.key before sending the request, so
// that a process that is killed in between asks again for the same key. A second process
// that renews the same pair waits.
//
// Fails with Failure::kUsage as CheckRenewable; with PermissionDenied when the authority
// does not renew this certificate (a retry does not help); otherwise with Unavailable.
absl::Status Renew(const RenewOrder& order);

// Returns the message that the old key signs (proto/join.proto).
std::string RenewalMessage(std::string_view authority, std::string_view request);

// Returns when to renew a certificate: when a third of its lifetime is left, and up to a
// twelfth earlier. The lifetime does not include kBackdated. The advance depends on
// `serial`, so that machines which joined together do not renew together.
absl::Time WhenToRenew(absl::Time from, absl::Time until, std::string_view serial);

}  // namespace syncline::certs
