#include "comm/rpc/join_channel.h"

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/diagnosis.h"
#include "comm/rpc/front_door.h"
#include "comm/rpc/grpc_door.h"
#include "comm/rpc/tls_probe.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace syncline {
namespace {

constexpr int kMaxMessageBytes = 16 << 10;  // a request has less than 1 KiB
constexpr int kMaxThreads = 8;
constexpr size_t kMaxMemoryBytes = size_t{64} << 20;
constexpr int kMaxCallsOfConnection = 2;
// A machine connects, makes one call, and leaves.
constexpr int kLongestHandshakeMs = 5'000;
constexpr int kLongestIdleMs = 5'000;
constexpr int kLongestConnectionMs = 30'000;

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCallsOfConnection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kLongestHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kLongestIdleMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kLongestConnectionMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kLongestIdleMs);
  grpc::ResourceQuota quota("join");
  quota.SetMaxThreads(kMaxThreads);
  quota.Resize(kMaxMemoryBytes);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, kMaxThreads / 2);
}

}  // namespace

absl::StatusOr<RunningServer> StartJoinServer(const JoinServerOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(HostPort listen, ParseHostPort(options.listen));
  SYNCLINE_ASSIGN_OR_RETURN(
      const PemPair own,
      Issue(options.authority,
            {.name = "join", .hosts = {kJoinName}, .validity = options.validity}));
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  // The authority's certificate is sent too, because the client has only its fingerprint.
  tls.pem_key_cert_pairs.push_back(
      {own.key, absl::StrCat(own.certificate, options.authority.certificate)});
  grpc::ServerBuilder builder;
  SetLimits(builder);
  RunningServer running;
  FrontDoorOptions door = {.take = TakeForGrpc(builder, grpc::SslServerCredentials(tls)),
                           .on_crowded = options.on_crowded,
                           .log = options.log};
  builder.RegisterService(options.service);
  running.server = builder.BuildAndStart();
  if (running.server == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot serve on ", listen.ToString()));
  }
  SYNCLINE_ASSIGN_OR_RETURN(running.door, FrontDoor::Open(listen, std::move(door)));
  running.port = listen.port;
  running.address = listen.ToString();
  running.door->Start();
  return running;
}

absl::StatusOr<JoinLink> DialAuthority(const JoinToken& token, absl::Duration limit) {
  SYNCLINE_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(token.address));
  const auto socket = ConnectTo(target, limit);
  if (!socket.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot reach the authority at ",
                                               token.address, ": ",
                                               socket.status().message()));
  }
  JoinLink link;
  SYNCLINE_ASSIGN_OR_RETURN(link.authority,
                            FetchAuthority(socket->get(), target.host, token.authority));
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = link.authority;
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride(kJoinName);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  link.channel =
      grpc::CreateCustomChannel(token.address, grpc::SslCredentials(tls), arguments);
  return link;
}

}  // namespace syncline
