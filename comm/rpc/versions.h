// Versions of gRPC and protobuf that this process uses.
#pragma once

#include <string>

namespace syncline {

std::string GrpcVersion();
std::string ProtobufVersion();

}  // namespace syncline
