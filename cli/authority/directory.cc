#include "cli/authority/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"

namespace syncline::certs {
namespace {

constexpr double kMaxHours = 24.0 * 825;

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// Syncs the folder of a file. The file's name is durable only after that.
absl::Status SyncFolderOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd.valid() && fsync(fd.get()) == 0 ? absl::OkStatus() : CannotWrite(path);
}

}  // namespace

absl::Status CannotWrite(const std::string& path) {
  return WithFailure(absl::UnavailableError(
                         absl::StrCat("cannot write '", path, "': ", std::strerror(errno),
                                      "; check path, space and permissions")),
                     Failure::kStateUnusable);
}

absl::Status WriteFile(const File& file) {
  const UniqueFd fd(open(file.path.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                         file.mode));
  if (!fd.valid()) return CannotWrite(file.path);
  const char* next = file.contents.data();
  size_t left = file.contents.size();
  while (left > 0) {
    const ssize_t wrote = write(fd.get(), next, left);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return CannotWrite(file.path);
    next += wrote;
    left -= static_cast<size_t>(wrote);
  }
  return fsync(fd.get()) == 0 ? absl::OkStatus() : CannotWrite(file.path);
}

absl::Status ReplaceFile(const File& file) {
  const std::string fresh = absl::StrCat(file.path, ".new-", getpid());
  absl::Status status = WriteFile({fresh, file.contents, file.mode});
  if (status.ok() && std::rename(fresh.c_str(), file.path.c_str()) != 0) {
    status = CannotWrite(file.path);
  }
  unlink(fresh.c_str());
  return status.ok() ? SyncFolderOf(file.path) : status;
}

absl::Status WritePair(const std::string& base, const PemPair& pair) {
  SYNCLINE_RETURN_IF_ERROR(WriteFile({base + ".key", pair.key, 0600}));
  return WriteFile({base + ".crt", pair.certificate});
}

// Replaces the key first, so that a certificate never lacks its key.
absl::Status ReplacePair(const std::string& base, const PemPair& pair) {
  const std::string fresh = absl::StrCat(base, ".new-", getpid());
  absl::Status status = WritePair(fresh, pair);
  for (const char* end : {".key", ".crt"}) {
    if (!status.ok()) break;
    if (std::rename((fresh + end).c_str(), (base + end).c_str()) != 0) {
      status = CannotWrite(base + end);
    }
  }
  for (const char* end : {".key", ".crt"}) unlink((fresh + end).c_str());
  return status;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream contents;
  contents << file.rdbuf();
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error))
    return Usage(absl::StrCat("cannot read '", path, "'; check the path"));
  return contents.str();
}

absl::StatusOr<std::optional<std::string>> ReadFileIfThere(const std::string& path) {
  std::error_code error;
  const auto found = std::filesystem::symlink_status(path, error);
  if (found.type() == std::filesystem::file_type::not_found) return std::nullopt;
  SYNCLINE_ASSIGN_OR_RETURN(std::string contents, ReadFile(path));
  return contents;
}

absl::StatusOr<CertificateFacts> ReadFacts(const std::string& path) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string pem, ReadFile(path));
  const CertificatePtr certificate = ParseCertificate(pem);
  if (certificate == nullptr) {
    return Usage(absl::StrCat("'", path, "' holds no certificate (PEM)"));
  }
  return FactsOf(*certificate);
}

absl::StatusOr<UniqueFd> LockDirectory(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return CannotWrite(path);
  while (flock(fd.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return CannotWrite(path);
  }
  return fd;
}

absl::StatusOr<Authority> ReadAuthority(const std::string& directory) {
  if (directory.empty()) {
    return Usage(
        "give the directory that `syncline certs init` made, which contains ca.key");
  }
  const std::string path = directory + "/ca.crt";
  Authority authority;
  SYNCLINE_ASSIGN_OR_RETURN(authority.pair.certificate, ReadFile(path));
  SYNCLINE_ASSIGN_OR_RETURN(authority.pair.key, ReadFile(directory + "/ca.key"));
  const CertificatePtr certificate = ParseCertificate(authority.pair.certificate);
  if (certificate == nullptr) {
    return Usage(absl::StrCat("'", path, "' holds no certificate (PEM)"));
  }
  const CertificateFacts facts = FactsOf(*certificate);
  const std::string uri = facts.names.uris.empty() ? "" : facts.names.uris[0];
  const absl::StatusOr<Cluster> cluster = ParseCluster(uri);
  if (!cluster.ok()) {
    return Usage(absl::StrCat("'", path,
                              "' was not made by `syncline certs init`: it names no "
                              "cluster"));
  }
  authority.cluster = *cluster;
  authority.until = facts.until;
  authority.fingerprint = FingerprintOf(*certificate);
  return authority;
}

absl::StatusOr<Validity> ValidFor(double hours) {
  if (!(hours > 0 && hours <= kMaxHours)) {
    return Usage(absl::StrCat("--hours ", hours, " is not in 0 to ", kMaxHours));
  }
  const absl::Time now = absl::Now();
  return Validity{now - kBackdated, now + absl::Hours(hours)};
}

Validity AsLongFrom(absl::Time now, absl::Time from, absl::Time until) {
  return {now - kBackdated, now - kBackdated + (until - from)};
}

absl::StatusOr<Identity> ParseMember(const std::string& role, const std::string& job) {
  const absl::StatusOr<Role> parsed = ParseRole(role);
  if (!parsed.ok()) {
    return Usage(absl::StrCat("--role: ", parsed.status().message()));
  }
  if ((*parsed == Role::kWorker) == job.empty()) {
    return Usage(job.empty() ? "a worker's certificate is for one job: give --job"
                             : "--job is for --role worker");
  }
  return Identity{*parsed, job};
}

std::string NameOf(const Identity& identity) {
  const std::string role(RoleName(identity.role));
  return identity.role == Role::kWorker ? absl::StrCat(role, "-", identity.job) : role;
}

absl::StatusOr<CertificateOrder> OrderFor(const Wish& wish) {
  const absl::StatusOr<std::string> uri = UriOf(wish.who);
  if (!uri.ok()) return Usage(std::string(uri.status().message()));
  constexpr size_t kMaxNameBytes = 64;
  return CertificateOrder{.name = NameOf(wish.who).substr(0, kMaxNameBytes),
                          .uri = *uri,
                          .hosts = wish.hosts,
                          .validity = wish.validity};
}

std::string Written(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

}  // namespace syncline::certs
