// Records which certificates of a directory of `syncline certs` were renewed, in the file
// `renewals.json`. Each certificate is renewed once, for one key. So a thief who renews a
// stolen certificate is noticed when the true machine asks, or is refused itself.
//
//   SYNCLINE_ASSIGN_OR_RETURN(pem, RenewOnce("certs", renewal, sign, now));
//   SYNCLINE_ASSIGN_OR_RETURN(serials, LineOf("certs", serial));
//
// Entries are dropped once the certificate and all its successors have expired.
//
// Thread safety: any thread, and any process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncline::certs {

struct Renewal {
  std::string serial = {};  // of the present certificate
  absl::Time until = {};    // its expiry
  std::string key = {};     // the new key (KeyOfRequest)
};

// Returns the certificate for the renewal, made by `sign`. It is on the disk before the
// client gets it. Returns the same certificate again for the same key, since an answer
// may be lost. Fails with PermissionDenied when it was renewed for another key, and with
// ResourceExhausted when certificates of its line are renewed too often.
absl::StatusOr<std::string> RenewOnce(
    const std::string& directory, Renewal renewal,
    const std::function<absl::StatusOr<std::string>()>& sign, absl::Time now);

// Returns all serials of the line of `serial`, itself included, in the form of
// ParseSerial. A line is one first certificate and all its renewals. Those that may still
// be valid are listed, to be revoked together. The caller holds LockDirectory.
absl::StatusOr<std::vector<std::string>> LineOf(const std::string& directory,
                                                const std::string& serial);

}  // namespace syncline::certs
