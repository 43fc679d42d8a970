// Permissions of each role on the control plane.
//
//   |                    | server | worker  | operator | reader | coordinator |
//   | attach as a server | yes    |         |          |        | yes (1)     |
//   | attach as a worker |        | own job |          |        |             |
//   | read the status    |        | own job | yes      | yes    |             |
//   | trace a job        |        | own job | yes      | yes    |             |
//   | change a job       |        |         | yes      |        |             |
//   | report an exit     |        | own job | yes      |        |             |
//
// (1) `serve --role all` is both, with one certificate. This gives a thief of the
// coordinator's key nothing more: impersonating the coordinator is worse.
//
// Pure functions, callable from any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "comm/rpc/identity.h"

namespace syncline {

enum class Action {
  kAttachAsServer,
  kAttachAsWorker,
  kReadStatus,
  kTraceJob,
  kUpdateJob,
  kDrainServer,
  kReportExit
};

// Fails with PermissionDenied (Failure::kUsage). The message says who tried what, which
// role is needed and how to get its certificate. `job`: the job that is accessed. Empty
// for a status or a server; the caller must then show a worker only its own job.
absl::Status CheckAllowed(const Identity& who, Action action, std::string_view job);

}  // namespace syncline
