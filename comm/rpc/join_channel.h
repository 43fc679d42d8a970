// The connection for a new machine's first certificate: TLS in which only the server
// presents a certificate. The authority creates that certificate for this purpose, for a
// name that no host has. The client knows the authority's fingerprint from the token, and
// sends nothing before it has verified it.
//
//   // The authority:
//   SYNCLINE_ASSIGN_OR_RETURN(RunningServer running, StartJoinServer(options));
//   // The new machine:
//   SYNCLINE_ASSIGN_OR_RETURN(JoinLink link, DialAuthority(token, limit));
//   v1::Authority::NewStub(link.channel)->Certify(…);
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/log.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/join_token.h"
#include "comm/rpc/server.h"
#include "grpcpp/channel.h"

namespace syncline {

// The name in the server's certificate. No host has such a name (RFC 2606).
inline constexpr char kJoinName[] = "join.syncline.invalid";

struct JoinServerOptions {
  std::string listen = "0.0.0.0:7073";  // port 0: a free one
  PemPair authority;
  Validity validity;  // of the certificate that it presents
  grpc::Service* service = nullptr;
  // See FrontDoorOptions.
  std::function<void(const std::string& source)> on_crowded = [](const std::string&) {};
  Logger log = {};
};

// Starts the server. Unauthenticated clients can reach it, so it limits messages, threads
// and the time without a call. Fails like StartServer.
absl::StatusOr<RunningServer> StartJoinServer(const JoinServerOptions& options);

struct JoinLink {
  std::shared_ptr<grpc::Channel> channel;
  std::string authority;  // PEM of the CA's certificate that the token names
};

// Connects to the authority of the token. Fails with Unavailable if there is no answer,
// and with PermissionDenied if the peer belongs to another authority.
absl::StatusOr<JoinLink> DialAuthority(const JoinToken& token, absl::Duration limit);

}  // namespace syncline
