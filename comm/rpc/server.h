// Server side of the control plane: one gRPC server with health service, reflection (on
// loopback) and the keepalive permissions that the clients of comm/rpc/channel.h need.
//
//   ServerOptions options;
//   options.listen = "127.0.0.1:0";
//   options.services = {&coordinator_service};
//   SYNCLINE_ASSIGN_OR_RETURN(RunningServer running, StartServer(options));
//   ... running.address ...
//   running.Shutdown(absl::Seconds(1));
//
// Services are borrowed and must outlive the RunningServer. RunningServer is movable and
// belongs to one thread; the services are called from gRPC's threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/log.h"
#include "comm/rpc/front_door.h"
#include "comm/rpc/timeouts.h"
#include "comm/rpc/tls.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server.h"

namespace syncline {

struct RunningServer {
  std::unique_ptr<grpc::Server> server;
  // By which others come in; whoever lets them in says so there.
  std::shared_ptr<FrontDoor> door;
  int port = 0;
  std::string address;  // host:port as listened on, with the real port

  // Lets calls finish until `grace` is over, then cancels them; returns when all handlers
  // are done.
  void Shutdown(absl::Duration grace);
};

struct ServerOptions {
  std::string listen = "127.0.0.1:7070";  // port 0 takes a free one
  TlsOptions tls;
  RpcTimeouts timeouts = RpcTimeouts::Default();
  std::vector<grpc::Service*> services;
  // Somebody who had proved nothing, or called nothing, had to make room (front_door.h).
  std::function<void(const std::string& source)> on_crowded = [](const std::string&) {};
  // It listens, and nobody has been taken in yet.
  std::function<void(const RunningServer& running)> on_listening =
      [](const RunningServer&) {};
  Logger log = {};
};

// Errors: Failure::kPortInUse (names the address and the fix); Failure::kUsage for a
// listener beyond loopback without TLS and without `insecure`, and for wrong TLS files.
absl::StatusOr<RunningServer> StartServer(const ServerOptions& options);

}  // namespace syncline
