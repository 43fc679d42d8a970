#include "server/checkpoint/shared_name.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace syncline {

bool IsShared(const CheckpointFile& file) {
  return absl::StartsWith(file.name, absl::StrCat(kSharedFolder, "/"));
}

bool HasShared(const Manifest& manifest) {
  return std::ranges::any_of(manifest.files, IsShared);
}

std::string BlobOf(const Manifest& manifest, const CheckpointFile& file) {
  const std::string folder =
      IsShared(file) ? FolderOf(manifest.job) : FolderOf(manifest.job, manifest.name);
  return absl::StrCat(folder, "/", file.name);
}

}  // namespace syncline
