// Client side of the control plane: channels that notice a dead link, and never a false
// death.
//
//   const auto channel = *CreateChannel("10.0.0.1:7070", tls, timeouts);
//   auto connected = WaitUntilConnected(*channel, "10.0.0.1:7070", tls, absl::Seconds(10));
//   grpc::ClientContext context;
//   SetDeadline(context, timeouts.call);  // every unary call has one
//
// Channels are thread-safe and reconnect by themselves.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/rpc/timeouts.h"
#include "comm/rpc/tls.h"
#include "grpc/support/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace syncline {

// Placement of a job with very many tensors is the largest control message.
inline constexpr int kMaxRpcMessageBytes = 64 << 20;

// Connects lazily. InvalidArgument when the address or the TLS files are wrong. The TLS
// server name is the host of `address`. Of several coordinators, "h1:7070,h2:7070", to the
// one that leads, for which it asks all of them now, for a second at most; where none does,
// to one that answers, and otherwise to the first.
absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(const std::string& address,
                                                             const TlsOptions& tls,
                                                             const RpcTimeouts& timeouts);

// Blocks until the channel is connected. When it is not within `timeout`, as
// UnreachableError, after another look of about a second at the cause (diagnosis.h). `tls`
// is what the channel was made with.
absl::Status WaitUntilConnected(grpc::Channel& channel, const std::string& address,
                                const TlsOptions& tls, absl::Duration timeout);

// Unavailable, Failure::kUnreachable: nobody answered at `address` for `timeout`, and
// `cause`, as DiagnoseConnection says it.
absl::Status UnreachableError(const std::string& address, absl::Duration timeout,
                              absl::string_view cause);

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout);

// `timeout` from now as gRPC counts it, by the monotonic clock.
gpr_timespec DeadlineIn(absl::Duration timeout);

// Stops gRPC from writing its own lines to stderr: what matters comes back as a Status,
// in one line. GRPC_VERBOSITY in the environment still turns them on. Call once, early in
// main.
void SilenceGrpcLog();

}  // namespace syncline
