#include "comm/rpc/server.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/grpc_door.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_builder.h"

namespace syncline {
namespace {

// Leaves time for TLS on a host that is busy.
constexpr absl::Duration kShortestHandshake = absl::Seconds(5);

absl::Status CheckExposure(const HostPort& listen, const TlsOptions& tls) {
  if (tls.HasTls() || tls.insecure || IsLoopback(listen.host)) return absl::OkStatus();
  return WithFailure(absl::InvalidArgumentError(absl::StrCat(
                         "refusing to listen on ", listen.ToString(),
                         " without TLS: anyone who reaches it could change the weights; "
                         "give --tls-cert, "
                         "--tls-key and --tls-ca, or --insecure on a network you trust")),
                     Failure::kUsage);
}

void SetKeepalive(grpc::ServerBuilder& builder, const RpcTimeouts& timeouts) {
  builder.AddChannelArgument(
      GRPC_ARG_KEEPALIVE_TIME_MS,
      static_cast<int>(absl::ToInt64Milliseconds(timeouts.keepalive_interval)));
  builder.AddChannelArgument(
      GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
      static_cast<int>(absl::ToInt64Milliseconds(timeouts.keepalive_timeout)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Limits how long an unknown peer can hold a file descriptor without proving its
  // identity.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(std::max(
                                 timeouts.keepalive_interval, kShortestHandshake))));
  // Closes connections of known peers that make no call. Members always have a stream.
  builder.AddChannelArgument(
      GRPC_ARG_MAX_CONNECTION_IDLE_MS,
      static_cast<int>(absl::ToInt64Milliseconds(timeouts.keepalive_timeout)));
  // By default a server sends GOAWAY "too_many_pings" to a client that pings more often
  // than every five minutes on an idle connection. The client would take this for a dead
  // server.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

// gRPC measures the bandwidth by a ping after each incoming message, which doubles the
// packets if there are only heartbeats. A fixed window is enough for the few large
// messages.
void SetWindow(grpc::ServerBuilder& builder) {
  constexpr int kWindowBytes = 1 << 20;
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
}

}  // namespace

void RunningServer::Shutdown(absl::Duration grace) {
  if (server == nullptr) return;
  if (door != nullptr) door->Close();
  server->Shutdown(DeadlineIn(grace));
  server->Wait();
}

absl::StatusOr<RunningServer> StartServer(const ServerOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(HostPort listen, ParseHostPort(options.listen));
  SYNCLINE_RETURN_IF_ERROR(CheckExposure(listen, options.tls));
  SYNCLINE_ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(options.tls));

  grpc::EnableDefaultHealthCheckService(true);
  // Reflection is for users of grpcurl on this host. Others need not know which services
  // there are.
  if (IsLoopback(listen.host)) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetKeepalive(builder, options.timeouts);
  SetWindow(builder);
  builder.SetMaxReceiveMessageSize(kMaxRpcMessageBytes);
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  FrontDoorOptions door = {.take = TakeForGrpc(builder, credentials),
                           .on_crowded = options.on_crowded,
                           .failure_timeout = options.timeouts.keepalive_timeout,
                           .log = options.log};
  RunningServer running;
  running.server = builder.BuildAndStart();
  if (running.server == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve on ", listen.ToString(),
                     "; check that --tls-cert and --tls-key match and are valid"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(running.door, FrontDoor::Open(listen, std::move(door)));
  running.port = listen.port;
  running.address = listen.ToString();
  options.on_listening(running);
  running.door->Start();
  return running;
}

}  // namespace syncline
