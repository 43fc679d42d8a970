// The StateStore of a single coordinator: one SQLite file, `state.db`, in a local
// directory.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto store, OpenSqliteStore("/var/lib/syncline"));
//
// The file stays locked while the store is open: a second coordinator on the same
// directory is refused at once, and the kernel lets go of the lock when a process dies.
// Each change is one transaction that is on disk when the call returns.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/base/log.h"
#include "server/store/state_store.h"

namespace syncline {

// Makes the directory (mode 0700) and the file (0600) if they are missing: the file holds
// keys of jobs. One that others could read is made private, and `log` is told. All errors are
// Failure::kStateUnusable and name the path and the fix: not writable, locked by another
// coordinator, disk full, damaged, emptied, or written by another program (then it is left
// as it is) or a newer Syncline. A first start that was cut short is begun anew.
absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStore(const std::string& directory,
                                                            const Logger& log = {});

}  // namespace syncline
