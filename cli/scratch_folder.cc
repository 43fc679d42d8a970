#include "cli/scratch_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace syncline {

absl::StatusOr<std::string> MakeScratchFolder(std::string_view prefix) {
  std::error_code error;
  std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string path = (parent / absl::StrCat(std::string(prefix), "XXXXXX")).string();
  if (!error && mkdtemp(path.data()) != nullptr) return path;
  const std::string why = error ? error.message() : std::strerror(errno);
  const char* const set = std::getenv("TMPDIR");
  if (parent.empty() && set != nullptr) parent = set;  // it does not exist
  return absl::PermissionDeniedError(
      absl::StrCat("cannot make a directory for temporary files in '", parent.string(),
                   "': ", why, "; set TMPDIR to a writable directory"));
}

}  // namespace syncline
