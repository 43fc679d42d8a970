// The StateStore of a single coordinator: one SQLite file, `state.db`, in a local
// directory.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto store, OpenSqliteStore("/var/lib/syncline"));
//
// The file stays locked while the store is open. A second coordinator on the same
// directory is refused at once, and the kernel releases the lock when the process ends.
// Each change is one transaction that is on the disk when the call returns.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/base/log.h"
#include "server/store/state_store.h"

namespace syncline {

// Creates the directory (mode 0700) and the file (0600) if they are missing: the file
// holds keys of jobs. A file that others could read is made private, with a warning to
// `log`. A first start that was cut short begins from scratch. All errors are
// Failure::kStateUnusable and name the path and the fix: not writable, locked by another
// coordinator, disk full, damaged, emptied, written by a newer Syncline, or written by
// another program (the file then stays as it is).
absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStore(const std::string& directory,
                                                            const Logger& log = {});

}  // namespace syncline
