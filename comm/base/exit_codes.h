// Exit codes of `syncline` and of programs that train with it (docs/errors.md). Scripts
// and job controllers depend on them: codes may be added, never changed.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncline {

enum ExitCode : int {
  kExitDone = 0,
  kExitFatal = 1,
  kExitUsage = 2,
  kExitPortInUse = 3,
  kExitStateUnusable = 4,
  kExitUnreachable = 5,
  kExitVersionMismatch = 6,
  kExitJobRefused = 7,
  // a GPU failed; a new process may help, on this machine or another
  kExitDeviceFailed = 8,
  kExitInterrupted = 130,  // 128 + SIGINT
  kExitRetryable = 138,    // stalled or servers lost; a restart is safe
  // excluded from its job as a straggler; do not restart it on this host
  kExitExcluded = 140,
  kExitTerminated = 143,  // 128 + SIGTERM, after a clean stop
  kExitJobOver = 144,     // came back too late; the other workers have finished the job
};

// Returns the exit code for `status`: decided by its Failure (comm/base/failure.h),
// otherwise by its code.
int ExitCodeOf(const absl::Status& status);

// Returns one line, "<program>: error: <message>". Line breaks in the message become ";
// ".
std::string ErrorLine(const absl::Status& status, absl::string_view program = "syncline");

}  // namespace syncline
