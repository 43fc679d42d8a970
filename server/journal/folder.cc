#include "server/journal/folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/base/unique_fd.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

absl::Status Failed(const char* what, const std::string& path) {
  return absl::InternalError(
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

absl::Status MakeAbsolute(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error) || !folder.has_relative_path()) {
    return absl::OkStatus();
  }
  SYNCLINE_RETURN_IF_ERROR(MakeAbsolute(folder.parent_path()));
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    return Failed("make", folder.string());
  }
  return SyncFolder(folder.parent_path().string());
}

}  // namespace

absl::Status FailedSync(const std::string& path, int error) {
  const std::string what = absl::StrCat("cannot sync ", path, ": ", std::strerror(error),
                                        " (errno ", error, ")");
  const bool is_full = error == ENOSPC || error == EDQUOT;
  return is_full ? absl::ResourceExhaustedError(absl::StrCat(what, "; free space there"))
                 : absl::DataLossError(what);
}

absl::Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return Failed("open", folder);
  return fsync(fd.get()) == 0 ? absl::OkStatus() : FailedSync(folder, errno);
}

absl::Status MakeFolder(const std::string& folder) {
  fs::path path = fs::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "/data/"
  return MakeAbsolute(path);
}

absl::Status HasRoom(const std::string& folder, uint64_t bytes) {
  struct statvfs disk = {};
  if (statvfs(folder.c_str(), &disk) != 0) return Failed("get free space of", folder);
  const uint64_t left = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (left >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the disk with ", folder, " has ", left, " bytes left, less than ", bytes));
}

absl::Status TryFolder(const std::string& folder) {
  std::string path = absl::StrCat(folder, "/probe-XXXXXX");
  const UniqueFd fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.valid()) return Failed("create a file in", folder);
  absl::Status tried;
  constexpr char kProbe[] = "a journal can be here";
  if (write(fd.get(), kProbe, sizeof(kProbe)) != sizeof(kProbe)) {
    tried = Failed("write", path);
  } else if (fdatasync(fd.get()) != 0) {
    tried = Failed("sync", path);
  }
  unlink(path.c_str());
  return tried;
}

absl::StatusOr<UniqueFd> LockFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd.valid()) return Failed("open", path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return Failed("lock", path);
  return absl::UnavailableError(absl::StrCat(
      path, " is locked: the server that writes this journal has not ended"));
}

}  // namespace syncline
