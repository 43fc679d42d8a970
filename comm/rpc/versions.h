// Which versions of gRPC and protobuf this process runs with.
#pragma once

#include <string>

namespace syncline {

std::string GrpcVersion();
std::string ProtobufVersion();

}  // namespace syncline
