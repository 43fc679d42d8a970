#include "comm/rpc/versions.h"

#include "google/protobuf/stubs/common.h"
#include "grpcpp/grpcpp.h"

namespace syncline {

std::string GrpcVersion() { return grpc::Version(); }

std::string ProtobufVersion() {
  return google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
}

}  // namespace syncline
