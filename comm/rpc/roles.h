// What each role may do on the control plane.
//
//   |                    | server | worker  | operator | reader | coordinator |
//   | attach as a server | yes    |         |          |        | yes (1)     |
//   | attach as a worker |        | own job |          |        |             |
//   | read the status    |        | own job | yes      | yes    |             |
//   | trace a job        |        | own job | yes      | yes    |             |
//   | change a job       |        |         | yes      |        |             |
//   | report an exit     |        | own job | yes      |        |             |
//
// (1) `serve --role all` is both, with one certificate. A thief of the coordinator's key
// gains nothing by it: to play the coordinator is worse.
//
// Pure functions; from any thread.
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

// PermissionDenied (Failure::kUsage) says who tried what, which role may do it and how to
// get its certificate. `job` is the one that is meant; of a status or server it is empty, and a
// worker must be shown only its own.
absl::Status CheckAllowed(const Identity& who, Action action, std::string_view job);

}  // namespace syncline
