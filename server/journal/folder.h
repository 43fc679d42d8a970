// Folders of journals: there after a power cut, and known to take files before a job relies
// on it.
//
// Thread safety: functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/unique_fd.h"

namespace syncline {

// What a sync of that file or folder has failed with. ResourceExhausted: the disk is full,
// which some say only then. DataLoss: what was written since the last sync may be gone,
// though a later one succeeds.
absl::Status FailedSync(const std::string& path, int error);

// Names of files in it are on the disk; errors as above.
absl::Status SyncFolder(const std::string& folder);

// That nobody but its owner writes to that file's like: an empty file beside it, locked for
// as long as the descriptor is open, in this process or another. Unavailable when somebody
// else has it.
absl::StatusOr<UniqueFd> LockFile(const std::string& path);

// With all folders above it, each durable in the one above.
absl::Status MakeFolder(const std::string& folder);

// ResourceExhausted where the disk has less than so many bytes left.
absl::Status HasRoom(const std::string& folder, uint64_t bytes);

// Writes and syncs a file in it, and removes that.
absl::Status TryFolder(const std::string& folder);

}  // namespace syncline
