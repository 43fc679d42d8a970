// A gRPC server whose connections come in by a FrontDoor (front_door.h), not by a port of
// its own.
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

// FrontDoorOptions::take of the server that `builder` will make. The door is opened once
// that server has started, and closed before it is shut down.
std::function<void(int fd, int listener)> TakeForGrpc(
    grpc::ServerBuilder& builder,
    const std::shared_ptr<grpc::ServerCredentials>& credentials);

}  // namespace syncline
