// Client side of the control plane: channels that detect a dead connection, and never
// report a live peer as dead.
//
//   const auto channel = *CreateChannel("10.0.0.1:7070", tls, timeouts);
//   auto connected = WaitUntilConnected(*channel, "10.0.0.1:7070", tls, absl::Seconds(10));
//   grpc::ClientContext context;
//   SetDeadline(context, timeouts.call);  // required for every unary call
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

// Limit of a control message. The largest is the placement of a job with very many
// tensors.
inline constexpr int kMaxRpcMessageBytes = 64 << 20;

// Returns a channel that connects lazily. Fails with InvalidArgument when the address or
// the TLS files are wrong. The TLS server name is the host of `address`.
//
// `address` may list several coordinators, "h1:7070,h2:7070". The call then asks all of
// them for at most a second, and chooses the leader. Without a leader it chooses one that
// answers, otherwise the first.
absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateChannel(const std::string& address,
                                                             const TlsOptions& tls,
                                                             const RpcTimeouts& timeouts);

// Blocks until the channel is connected. Fails after `timeout` with UnreachableError,
// which takes about another second to find the cause (diagnosis.h). `tls`: the options
// with which the channel was created.
absl::Status WaitUntilConnected(grpc::Channel& channel, const std::string& address,
                                const TlsOptions& tls, absl::Duration timeout);

// Returns Unavailable with Failure::kUnreachable: there was no answer at `address` for
// `timeout`. `cause` comes from DiagnoseConnection.
absl::Status UnreachableError(const std::string& address, absl::Duration timeout,
                              absl::string_view cause);

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout);

// Returns the time `timeout` from now for gRPC, by the monotonic clock.
gpr_timespec DeadlineIn(absl::Duration timeout);

// Stops gRPC from writing its own lines to stderr, since errors are returned as Status.
// GRPC_VERBOSITY in the environment still enables them. Call once, early in main.
void SilenceGrpcLog();

}  // namespace syncline
