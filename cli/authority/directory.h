// The directory of `syncline certs init`: an authority (ca.crt, ca.key), pairs of its
// members, `revoked` and `tokens.json`. Files come whole or not at all, keys with mode
// 0600.
//
// Thread safety: any thread, and any process: whoever reads and then writes a file holds
// LockDirectory.
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

// Of errno, after a call that failed.
absl::Status CannotWrite(const std::string& path);

// A new file, on the disk when it returns.
absl::Status WriteFile(const File& file);
// In place of what is there, also after a power loss.
absl::Status ReplaceFile(const File& file);
// BASE.key and BASE.crt.
absl::Status WritePair(const std::string& base, const PemPair& pair);
absl::Status ReplacePair(const std::string& base, const PemPair& pair);

// Failure::kUsage when it cannot be read.
absl::StatusOr<std::string> ReadFile(const std::string& path);
// None where there is no such file, which is something else than one that cannot be read.
absl::StatusOr<std::optional<std::string>> ReadFileIfThere(const std::string& path);
absl::StatusOr<CertificateFacts> ReadFacts(const std::string& path);

// Others that want it wait until it is closed.
absl::StatusOr<UniqueFd> LockDirectory(const std::string& path);

// ---- The authority ----

struct Authority {
  PemPair pair;
  Cluster cluster;
  absl::Time until;
  std::string fingerprint;
};

// Failure::kUsage when `directory` is none of `certs init`.
absl::StatusOr<Authority> ReadAuthority(const std::string& directory);

// Certificates are valid from so long ago, as clocks of hosts differ.
inline constexpr absl::Duration kBackdated = absl::Minutes(5);

// Failure::kUsage for hours out of range.
absl::StatusOr<Validity> ValidFor(double hours);

// As long as one that was valid from `from` until `until`.
Validity AsLongFrom(absl::Time now, absl::Time from, absl::Time until);

// Of --role and --job.
absl::StatusOr<Identity> ParseMember(const std::string& role, const std::string& job);

// "worker-bert", "server": of files, and the certificate's name for people.
std::string NameOf(const Identity& identity);

// What a certificate for it says. Failure::kUsage when a name cannot stand in one.
struct Wish {
  Identity who;
  std::vector<std::string> hosts;
  Validity validity;
};
absl::StatusOr<CertificateOrder> OrderFor(const Wish& wish);

// "2026-01-31 10:00 UTC"
std::string Written(absl::Time time);

}  // namespace syncline::certs
