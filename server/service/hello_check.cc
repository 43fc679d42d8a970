#include "server/service/hello_check.h"

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/attach_stream.h"
#include "comm/rpc/roles.h"

namespace syncline {
namespace {

// "0.1.0", and what a packager adds.
constexpr size_t kMaxBuildBytes = 64;

absl::Status CheckProtocol(uint32_t theirs, const std::string& build) {
  if (theirs == kProtocolVersion) return absl::OkStatus();
  return WithFailure(absl::FailedPreconditionError(absl::StrCat(
                         "client ", Printable(build, kMaxBuildBytes), " speaks protocol ",
                         theirs, ", this coordinator (", SYNCLINE_VERSION, ") speaks ",
                         kProtocolVersion, ": install the same version on both sides")),
                     Failure::kVersionMismatch);
}

absl::Status CheckFailureTimeout(uint32_t theirs_ms, absl::Duration ours) {
  const absl::Duration theirs = absl::Milliseconds(theirs_ms);
  if (theirs_ms == 0 || theirs == absl::Trunc(ours, absl::Milliseconds(1))) {
    return absl::OkStatus();
  }
  return WithFailure(absl::FailedPreconditionError(absl::StrCat(
                         "the failure timeout is ", absl::FormatDuration(theirs),
                         " here and ", absl::FormatDuration(ours),
                         " at the coordinator: give both the same (--failure-timeout, "
                         "SYNCLINE_FAILURE_TIMEOUT)")),
                     Failure::kUsage);
}

template <typename Hello>
absl::Status CheckTerms(const Hello& hello, const Timeouts& timeouts) {
  SYNCLINE_RETURN_IF_ERROR(
      CheckProtocol(hello.protocol_version(), hello.build_version()));
  return CheckFailureTimeout(hello.failure_timeout_ms(), timeouts.failure_timeout);
}

absl::Status CheckRole(const Peer& peer, Action action, const std::string& job) {
  return peer.identity ? CheckAllowed(*peer.identity, action, job) : absl::OkStatus();
}

}  // namespace

absl::Status CheckHello(const v1::MemberMessage& message, const Peer& peer,
                        const Timeouts& timeouts) {
  if (message.has_server_hello()) {
    SYNCLINE_RETURN_IF_ERROR(CheckTerms(message.server_hello(), timeouts));
    return CheckRole(peer, Action::kAttachAsServer, "");
  }
  if (message.has_worker_hello()) {
    SYNCLINE_RETURN_IF_ERROR(CheckTerms(message.worker_hello(), timeouts));
    return CheckRole(peer, Action::kAttachAsWorker, message.worker_hello().job());
  }
  return absl::OkStatus();
}

}  // namespace syncline
