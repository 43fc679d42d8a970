// Connects a gRPC server to a FrontDoor (front_door.h), which accepts its connections
// instead of a port of gRPC.
//
//   FrontDoorOptions door = {.take = TakeForGrpc(builder, credentials)};
//   auto server = builder.BuildAndStart();
//   auto open = FrontDoor::Open(address, std::move(door));
#pragma once

#include <functional>
#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace syncline {

// Returns FrontDoorOptions::take for the server that `builder` will create. Open the door
// after the server has started, and close it before the server is shut down.
std::function<void(int fd, int listener)> TakeForGrpc(
    grpc::ServerBuilder& builder,
    const std::shared_ptr<grpc::ServerCredentials>& credentials);

}  // namespace syncline
