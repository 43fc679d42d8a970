// Server side of the control plane: one gRPC server with a health service, reflection (on
// loopback) and the keepalive permissions that clients of comm/rpc/channel.h need.
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
  // Accepts the connections. Report admitted peers to it (FrontDoor::LetIn).
  std::shared_ptr<FrontDoor> door;
  int port = 0;
  std::string address;  // HOST:PORT that it listens on, with the real port

  // Lets calls finish within `grace`, then cancels them. Returns when all handlers are
  // done.
  void Shutdown(absl::Duration grace);
};

struct ServerOptions {
  std::string listen = "127.0.0.1:7070";  // port 0: a free one
  TlsOptions tls;
  RpcTimeouts timeouts = RpcTimeouts::Default();
  std::vector<grpc::Service*> services;
  // Called when a connection without an authenticated call was closed to make room
  // (front_door.h).
  std::function<void(const std::string& source)> on_crowded = [](const std::string&) {};
  // Called once it listens, before it accepts connections.
  std::function<void(const RunningServer& running)> on_listening =
      [](const RunningServer&) {};
  Logger log = {};
};

// Fails with Failure::kPortInUse (names the address, with advice), and with
// Failure::kUsage for a listener beyond loopback without TLS and without `insecure`, or
// for wrong TLS files.
absl::StatusOr<RunningServer> StartServer(const ServerOptions& options);

}  // namespace syncline
