#include "comm/rpc/channel.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/diagnosis.h"
#include "grpc/support/log.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/channel_arguments.h"

namespace syncline {
namespace {

constexpr absl::Duration kLongestDiagnosis = absl::Seconds(1);
constexpr absl::Duration kLongestChoice = absl::Seconds(1);

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
  // Without a shared pool, a failed attempt leaves nothing behind for the next one, not
  // even its backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Peers are in the job's own network, which an http_proxy for outgoing traffic does not
  // reach.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxRpcMessageBytes);
  return arguments;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateOneChannel(
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

// A coordinator's state by its health service.
enum class Standing { kNone, kStandby, kLeads };

// Returns the state from an answer of the health service. A standby does not serve.
Standing StandingOf(const grpc::Status& status, const grpc::ByteBuffer& reply) {
  if (!status.ok()) return Standing::kNone;
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!reply.Dump(&slices).ok()) return Standing::kNone;
  for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  constexpr absl::string_view kServing("\x08\x01");  // field 1, SERVING
  return bytes == kServing ? Standing::kLeads : Standing::kStandby;
}

// Asks all coordinators at once. Returns the first that leads, or otherwise the best that
// answered.
std::shared_ptr<grpc::Channel> ChooseChannel(
    const std::vector<std::shared_ptr<grpc::Channel>>& channels) {
  struct Call {
    explicit Call(const std::shared_ptr<grpc::Channel>& channel) : stub(channel) {}
    grpc::GenericStub stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
    grpc::ByteBuffer reply;
    grpc::Status status;
  };
  grpc::CompletionQueue queue;
  const grpc::ByteBuffer nothing(nullptr, 0);
  std::vector<std::unique_ptr<Call>> calls;
  for (size_t i = 0; i < channels.size(); ++i) {
    calls.push_back(std::make_unique<Call>(channels[i]));
    Call& call = *calls.back();
    SetDeadline(call.context, kLongestChoice);
    call.reader = call.stub.PrepareUnaryCall(
        &call.context, "/grpc.health.v1.Health/Check", nothing, &queue);
    call.reader->StartCall();
    call.reader->Finish(&call.reply, &call.status, &call);
  }
  size_t best = 0;
  Standing standing = Standing::kNone;
  void* tag = nullptr;
  bool ok = false;
  for (size_t done = 0; done < calls.size() && queue.Next(&tag, &ok); ++done) {
    const auto found = std::find_if(calls.begin(), calls.end(),
                                    [&](const auto& call) { return call.get() == tag; });
    const Standing its = StandingOf((*found)->status, (*found)->reply);
    if (its <= standing) continue;
    standing = its;
    best = static_cast<size_t>(found - calls.begin());
    if (standing != Standing::kLeads) continue;
    for (const auto& call : calls) call->context.TryCancel();
  }
  return channels[best];
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(
    const std::string& address, const TlsOptions& tls, const RpcTimeouts& timeouts) {
  if (!absl::StrContains(address, ',')) return CreateOneChannel(address, tls, timeouts);
  SYNCLINE_ASSIGN_OR_RETURN(const auto addresses, ParseAddresses(address));
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (const std::string& one : addresses) {
    SYNCLINE_ASSIGN_OR_RETURN(channels.emplace_back(),
                              CreateOneChannel(one, tls, timeouts));
  }
  return ChooseChannel(channels);
}

absl::Status WaitUntilConnected(grpc::Channel& channel, const std::string& address,
                                const TlsOptions& tls, absl::Duration timeout) {
  if (channel.WaitForConnected(DeadlineIn(timeout))) return absl::OkStatus();
  // One limit each for connecting, writing and reading. Looking up a name, or a name with
  // several addresses, takes longer.
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
