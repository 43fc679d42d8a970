// Which certificates of a directory of `syncline certs` were renewed: a file
// `renewals.json`. Each is renewed once, for one key; so a thief who renews what was stolen
// is noticed when the true machine comes, or is refused itself.
//
//   SYNCLINE_ASSIGN_OR_RETURN(pem, RenewOnce("certs", renewal, sign, now));
//   SYNCLINE_ASSIGN_OR_RETURN(serials, LineOf("certs", serial));
//
// What was renewed is forgotten once it and what came of it have ended.
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
  std::string serial = {};  // of the certificate that is shown
  absl::Time until = {};    // its end
  std::string key = {};     // that it shall be renewed for (KeyOfRequest)
};

// The certificate that `sign` makes, on the disk before anybody hears of it; the same one
// again for the same key, as an answer may be lost. PermissionDenied when it was renewed
// for another key, ResourceExhausted when its line is renewed without need.
absl::StatusOr<std::string> RenewOnce(
    const std::string& directory, Renewal renewal,
    const std::function<absl::StatusOr<std::string>()>& sign, absl::Time now);

// The serials (as ParseSerial has them), `serial` among them, that came of the same first certificate by renewal and
// may not have ended: they are taken back together. The caller holds LockDirectory.
absl::StatusOr<std::vector<std::string>> LineOf(const std::string& directory,
                                                const std::string& serial);

}  // namespace syncline::certs
