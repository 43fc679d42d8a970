#include "cli/weights_file.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "server/checkpoint/directory_store.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

absl::Status Refuse(const std::string& path, const std::string& why) {
  return WithFailure(absl::InvalidArgumentError(absl::StrCat("--out ", path, " ", why)),
                     Failure::kUsage);
}

}  // namespace

absl::Status CheckWeightsFile(const std::string& path) {
  const fs::path file = fs::absolute(path);
  std::error_code error;
  const fs::file_status there = fs::symlink_status(file, error);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    return Refuse(path, "is not a regular file; name one");
  }
  const fs::path parent = file.parent_path();
  if (!fs::is_directory(parent, error)) {
    return Refuse(
        path, absl::StrCat("cannot be created: there is no directory ", parent.string()));
  }
  return absl::OkStatus();
}

absl::Status WriteWeightsFile(const CheckpointReader& from, const std::string& path) {
  SYNCLINE_RETURN_IF_ERROR(CheckWeightsFile(path));
  const fs::path file = fs::absolute(path);
  SYNCLINE_ASSIGN_OR_RETURN(const auto to,
                            OpenExistingDirectoryStore(file.parent_path().string()));
  return from.Export(*to, file.filename().string());
}

}  // namespace syncline
