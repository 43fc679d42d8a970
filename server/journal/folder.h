// Folders for journals: durable after a power cut, and tested to take files before a job
// relies on them.
//
// Thread safety: free functions without shared state.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/unique_fd.h"

namespace syncline {

// Returns the error of a failed sync of that file or folder. ResourceExhausted: the disk
// is full, which some file systems report only on a sync. DataLoss: what was written
// since the last sync may be lost, even if a later sync succeeds.
absl::Status FailedSync(const std::string& path, int error);

// Makes the names of files in the folder durable. Fails as FailedSync says.
absl::Status SyncFolder(const std::string& folder);

// Creates an empty lock file at `path` and locks it for as long as the descriptor is
// open. Fails with Unavailable if this or another process holds the lock.
absl::StatusOr<UniqueFd> LockFile(const std::string& path);

// Creates the folder and all folders above it, and makes each name durable.
absl::Status MakeFolder(const std::string& folder);

// Fails with ResourceExhausted if the disk has less than `bytes` left.
absl::Status HasRoom(const std::string& folder, uint64_t bytes);

// Tests the folder: writes and syncs a file in it, and deletes that file.
absl::Status TryFolder(const std::string& folder);

}  // namespace syncline
