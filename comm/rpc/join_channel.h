// The way of a new machine's first certificate: TLS in which the server alone shows a
// certificate. It is made for this by the authority, for a name that no host has; the
// client knows the authority by its fingerprint, which the token has, and sends nothing
// before it has seen it.
//
//   SYNCLINE_ASSIGN_OR_RETURN(RunningServer running, StartJoinServer(options));     // here
//   SYNCLINE_ASSIGN_OR_RETURN(JoinLink link, DialAuthority(token, limit));         // there
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

// What the server's certificate is for. No host has such a name (RFC 2606).
inline constexpr char kJoinName[] = "join.syncline.invalid";

struct JoinServerOptions {
  std::string listen = "0.0.0.0:7073";  // port 0 takes a free one
  PemPair authority;
  Validity validity;  // of the certificate that it shows
  grpc::Service* service = nullptr;
  // FrontDoorOptions has it.
  std::function<void(const std::string& source)> on_crowded = [](const std::string&) {};
  Logger log = {};
};

// Strangers reach it, so all is small: messages, threads, time without a call. Errors as
// StartServer.
absl::StatusOr<RunningServer> StartJoinServer(const JoinServerOptions& options);

struct JoinLink {
  std::shared_ptr<grpc::Channel> channel;
  std::string authority;  // the CA's certificate, PEM: the one that the token names
};

// Unavailable when nobody answers, PermissionDenied when who answers is of another
// authority.
absl::StatusOr<JoinLink> DialAuthority(const JoinToken& token, absl::Duration limit);

}  // namespace syncline
