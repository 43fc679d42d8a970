// The exit codes of `syncline` and of programs that train with it (docs/errors.md).
// Scripts and job controllers rely on them: they may be added to, never changed.
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
  kExitDeviceFailed = 8,   // a GPU: a new process may help, on that machine or another
  kExitInterrupted = 130,  // 128 + SIGINT
  kExitRetryable = 138,    // stalled or servers lost: starting again is safe
  kExitExcluded = 140,     // from its job, as a straggler: not to be started again here
  kExitTerminated = 143,   // 128 + SIGTERM, after a clean stop
  kExitJobOver = 144,      // came back too late: the others have finished the job
};

// The exit code for `status`: its Failure (comm/base/failure.h) decides, then its code.
int ExitCodeOf(const absl::Status& status);

// One line, "<program>: error: <message>". Line breaks inside the message become "; ".
std::string ErrorLine(const absl::Status& status, absl::string_view program = "syncline");

}  // namespace syncline
