// A BlobStore in a directory, which several hosts may share (NFS, a ReadWriteMany
// volume). Each blob is one file: it is written under another name, synced, and renamed.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/blob_store.h"

namespace syncline {

// Creates the directory if it is missing. Fails with Failure::kUsage if it cannot be
// written.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenDirectoryStore(const std::string& path);

// Opens a directory for commands that only read. It must exist.
absl::StatusOr<std::unique_ptr<BlobStore>> OpenExistingDirectoryStore(
    const std::string& path);

}  // namespace syncline
