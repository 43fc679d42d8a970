// The directory of `syncline certs init`: an authority (ca.crt, ca.key), the key pairs of
// its members, `revoked` and `tokens.json`. Files are written completely or not at all.
// Keys have mode 0600.
//
// Thread safety: any thread and any process may use it. Hold LockDirectory while you read
// a file and write it back.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/identity.h"
#include "comm/rpc/issuer.h"

namespace syncline::certs {

// ---- Files ----

struct File {
  std::string path;
  std::string contents;
  mode_t mode = 0644;
};

// Returns the error for errno after a failed call.
absl::Status CannotWrite(const std::string& path);

// Writes a new file, which is on the disk when the call returns.
absl::Status WriteFile(const File& file);
// Replaces a file, atomically even across a power loss.
absl::Status ReplaceFile(const File& file);
// Write BASE.key and BASE.crt.
absl::Status WritePair(const std::string& base, const PemPair& pair);
absl::Status ReplacePair(const std::string& base, const PemPair& pair);

// Fails with Failure::kUsage when the file cannot be read.
absl::StatusOr<std::string> ReadFile(const std::string& path);
// Returns nullopt if there is no such file; an unreadable file is an error.
absl::StatusOr<std::optional<std::string>> ReadFileIfThere(const std::string& path);
absl::StatusOr<CertificateFacts> ReadFacts(const std::string& path);

// Locks the directory until the result is closed. Waits while another process holds the
// lock.
absl::StatusOr<UniqueFd> LockDirectory(const std::string& path);

// ---- The authority ----

struct Authority {
  PemPair pair;
  Cluster cluster;
  absl::Time until;
  std::string fingerprint;
};

// Fails with Failure::kUsage when `directory` was not made by `certs init`.
absl::StatusOr<Authority> ReadAuthority(const std::string& directory);

// Certificates are valid from this long before now, since clocks of hosts differ.
inline constexpr absl::Duration kBackdated = absl::Minutes(5);

// Fails with Failure::kUsage for hours out of range.
absl::StatusOr<Validity> ValidFor(double hours);

// Returns a validity from `now` that is as long as the one from `from` until `until`.
Validity AsLongFrom(absl::Time now, absl::Time from, absl::Time until);

// Parses the values of --role and --job.
absl::StatusOr<Identity> ParseMember(const std::string& role, const std::string& job);

// Returns a name such as "worker-bert" or "server", for files and for the certificate's
// common name.
std::string NameOf(const Identity& identity);

// The contents of a new certificate.
struct Wish {
  Identity who;
  std::vector<std::string> hosts;
  Validity validity;
};
// Fails with Failure::kUsage when a name cannot be part of a certificate.
absl::StatusOr<CertificateOrder> OrderFor(const Wish& wish);

// Formats a time as "2026-01-31 10:00 UTC".
std::string Written(absl::Time time);

}  // namespace syncline::certs
