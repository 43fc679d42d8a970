// Failures that an operator must tell apart, carried as a payload of absl::Status.
//
// absl's codes give the kind of an error. A Failure names the situation in
// docs/errors.md, which determines the exit code of `syncline`. Code below cli/ attaches
// it where the situation is known. It survives SYNCLINE_RETURN_IF_ERROR and travels over
// gRPC (comm/rpc/status.h).
//
//   return WithFailure(absl::UnavailableError("127.0.0.1:7070 is in use; ..."),
//                      Failure::kPortInUse);
#pragma once

#include <array>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace syncline {

enum class Failure {
  kNone,             // only the status code is known
  kUsage,            // a flag or a setting is wrong
  kPortInUse,        // another process listens there
  kStateUnusable,    // the state directory cannot be opened, written or trusted
  kUnreachable,      // a peer does not answer
  kVersionMismatch,  // client and server speak different protocol versions
  kJobRefused,       // for example a second job with the same name
  kDeviceFailed,     // a GPU or its program failed, and this process cannot continue
  kRetryable,        // stalled, or servers were lost; a restart is safe
  kExcluded,         // a worker delayed all others; do not restart it on this host
  kJobOver,          // a worker came back to a job that the others have finished
};

inline constexpr char kFailurePayloadUrl[] = "syncline.Failure";

struct FailureName {
  Failure failure;
  const char* name;
};

// Names are the payload's bytes on the wire: they may be added, never changed.
inline constexpr std::array<FailureName, 10> kFailureNames = {{
    {Failure::kUsage, "usage"},
    {Failure::kPortInUse, "port_in_use"},
    {Failure::kStateUnusable, "state_unusable"},
    {Failure::kUnreachable, "unreachable"},
    {Failure::kVersionMismatch, "version_mismatch"},
    {Failure::kJobRefused, "job_refused"},
    {Failure::kDeviceFailed, "device_failed"},
    {Failure::kRetryable, "retryable"},
    {Failure::kExcluded, "excluded"},
    {Failure::kJobOver, "job_over"},
}};

inline absl::Status WithFailure(absl::Status status, Failure failure) {
  for (const FailureName& entry : kFailureNames) {
    if (entry.failure == failure) {
      status.SetPayload(kFailurePayloadUrl, absl::Cord(entry.name));
    }
  }
  return status;
}

// Returns kNone when nothing is attached, or a name that only a newer peer knows.
inline Failure FailureOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kFailurePayloadUrl);
  if (!payload.has_value()) return Failure::kNone;
  for (const FailureName& entry : kFailureNames) {
    if (*payload == absl::string_view(entry.name)) return entry.failure;
  }
  return Failure::kNone;
}

}  // namespace syncline
