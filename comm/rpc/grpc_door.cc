#include "comm/rpc/grpc_door.h"

namespace syncline {

using grpc::experimental::ExternalConnectionAcceptor;

std::function<void(int fd, int listener)> TakeForGrpc(
    grpc::ServerBuilder& builder,
    const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  const std::shared_ptr<ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
  return [acceptor](int fd, int listener) {
    ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    connection.listener_fd = listener;
    acceptor->HandleNewConnection(&connection);
  };
}

}  // namespace syncline
