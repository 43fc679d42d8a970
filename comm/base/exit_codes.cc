#include "comm/base/exit_codes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "comm/base/failure.h"

namespace syncline {

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  switch (FailureOf(status)) {
    case Failure::kUsage:
      return kExitUsage;
    case Failure::kPortInUse:
      return kExitPortInUse;
    case Failure::kStateUnusable:
      return kExitStateUnusable;
    case Failure::kUnreachable:
      return kExitUnreachable;
    case Failure::kVersionMismatch:
      return kExitVersionMismatch;
    case Failure::kJobRefused:
      return kExitJobRefused;
    case Failure::kDeviceFailed:
      return kExitDeviceFailed;
    case Failure::kRetryable:
      return kExitRetryable;
    case Failure::kExcluded:
      return kExitExcluded;
    case Failure::kJobOver:
      return kExitJobOver;
    case Failure::kNone:
      break;
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    default:
      return kExitFatal;
  }
}

std::string ErrorLine(const absl::Status& status, absl::string_view program) {
  const absl::string_view message = absl::StripSuffix(status.message(), "\n");
  return absl::StrCat(program, ": error: ", absl::StrReplaceAll(message, {{"\n", "; "}}));
}

}  // namespace syncline
