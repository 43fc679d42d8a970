#include "comm/rpc/channel.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/diagnosis.h"
#include "grpc/support/log.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace syncline {
namespace {

constexpr absl::Duration kLongestDiagnosis = absl::Seconds(1);

grpc::ChannelArguments MakeArguments(const RpcTimeouts& timeouts) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(
      GRPC_ARG_KEEPALIVE_TIME_MS,
      static_cast<int>(absl::ToInt64Milliseconds(timeouts.keepalive_interval)));
  arguments.SetInt(
      GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
      static_cast<int>(absl::ToInt64Milliseconds(timeouts.keepalive_timeout)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Heartbeats are rare next to pings, so the default of two pings between data frames
  // would stop keepalive on an idle stream.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The default backs off up to two minutes, longer than any failure timeout.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // An attempt that failed leaves nothing behind for the next one, not even its backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Peers live in the job's own network: an http_proxy set for the way out would swallow
  // them.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxRpcMessageBytes);
  return arguments;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(
    const std::string& address, const TlsOptions& tls, const RpcTimeouts& timeouts) {
  SYNCLINE_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(address));
  if (target.port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' names no port to connect to"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(auto credentials, MakeChannelCredentials(tls, target.host));
  return grpc::CreateCustomChannel(target.ToString(), credentials,
                                   MakeArguments(timeouts));
}

absl::Status WaitUntilConnected(grpc::Channel& channel, const std::string& address,
                                const TlsOptions& tls, absl::Duration timeout) {
  if (channel.WaitForConnected(DeadlineIn(timeout))) return absl::OkStatus();
  // It may connect, write and read. Only the look-up of a name takes longer.
  const absl::Duration limit = std::min(timeout, kLongestDiagnosis);
  const Inquiry inquiry(address, tls, limit);
  return UnreachableError(address, timeout, inquiry.Within(4 * limit).cause);
}

absl::Status UnreachableError(const std::string& address, absl::Duration timeout,
                              absl::string_view cause) {
  return WithFailure(
      absl::UnavailableError(
          absl::StrCat("cannot reach ", address, " within ",
                       absl::FormatDuration(absl::Trunc(timeout, absl::Milliseconds(1))),
                       ": ", cause)),
      Failure::kUnreachable);
}

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(DeadlineIn(timeout));
}

gpr_timespec DeadlineIn(absl::Duration timeout) {
  return gpr_time_add(
      gpr_now(GPR_CLOCK_MONOTONIC),
      gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN));
}

void SilenceGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) {
    gpr_set_log_function([](gpr_log_func_args*) {});
  }
}

}  // namespace syncline
