#include "comm/transport/tcp/tcp.h"

#include "comm/base/status.h"
#include "comm/transport/tcp/transport.h"

namespace syncline {

const char* TcpSecurityName(TcpSecurity security) {
  return security == TcpSecurity::kTls ? "tls" : "plain";
}

absl::StatusOr<std::unique_ptr<TcpTransport>> CreateTcpTransport(
    const TcpOptions& options, Receiver& receiver) {
  auto transport = std::make_unique<TcpLoopTransport>(options, receiver);
  SYNCLINE_RETURN_IF_ERROR(transport->Open());
  return transport;
}

}  // namespace syncline
