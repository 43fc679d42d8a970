#include "comm/rpc/roles.h"

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

bool IsAllowed(const Identity& who, Action action, std::string_view job) {
  switch (action) {
    case Action::kAttachAsServer:
      return who.role == Role::kServer || who.role == Role::kCoordinator;
    case Action::kAttachAsWorker:
      return who.role == Role::kWorker && who.job == job;
    case Action::kReadStatus:
      return who.role == Role::kOperator || who.role == Role::kReader ||
             who.role == Role::kWorker;
    case Action::kTraceJob:
      return who.role == Role::kOperator || who.role == Role::kReader ||
             (who.role == Role::kWorker && who.job == job);
    case Action::kReportExit:
      return who.role == Role::kOperator || (who.role == Role::kWorker && who.job == job);
    case Action::kUpdateJob:
    case Action::kDrainServer:
      return who.role == Role::kOperator;
  }
  return false;
}

std::string What(Action action, const std::string& job) {
  switch (action) {
    case Action::kAttachAsServer:
      return "attach as a server";
    case Action::kAttachAsWorker:
      return absl::StrCat("attach as a worker of job '", job, "'");
    case Action::kReadStatus:
      return "read the status";
    case Action::kTraceJob:
      return absl::StrCat("trace job '", job, "'");
    case Action::kUpdateJob:
      return absl::StrCat("change job '", job, "'");
    case Action::kDrainServer:
      return "drain servers";
    case Action::kReportExit:
      return absl::StrCat("report exits of workers of job '", job, "'");
  }
  return "do that";
}

// Returns the options for `syncline certs issue`.
std::string WhoMay(Action action, const std::string& job) {
  switch (action) {
    case Action::kAttachAsServer:
      return "--role server";
    case Action::kAttachAsWorker:
    case Action::kReportExit:
      return absl::StrCat("--role worker --job ", job);
    case Action::kReadStatus:
    case Action::kTraceJob:
      return "--role reader";
    case Action::kUpdateJob:
    case Action::kDrainServer:
      return "--role operator";
  }
  return "--role operator";
}

}  // namespace

absl::Status CheckAllowed(const Identity& who, Action action, std::string_view job) {
  if (IsAllowed(who, action, job)) return absl::OkStatus();
  const std::string shown = Printable(job);
  return WithFailure(absl::PermissionDeniedError(absl::StrCat(
                         "by its certificate this is the ", Describe(who),
                         ", which may not ", What(action, shown),
                         "; give --tls-cert and --tls-key of `syncline certs issue DIR ",
                         WhoMay(action, shown), "`")),
                     Failure::kUsage);
}

}  // namespace syncline
