// Blobs as files of a directory, which several hosts may share (NFS, a ReadWriteMany
// volume). Each is written under another name, synced, and renamed.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"

namespace syncline {

// Makes the directory if it is missing. Failure::kUsage when it cannot be written.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenDirectoryStore(const std::string& path);

// For commands that only read: the directory must be there.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenExistingDirectoryStore(
    const std::string& path);

}  // namespace syncline
