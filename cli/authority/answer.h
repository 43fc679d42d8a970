// Shared by `certs join` and `certs renew`: a request that may be repeated, and the
// checks of a certificate before it is stored.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/rpc/identity.h"
#include "comm/rpc/issuer.h"
#include "grpcpp/client_context.h"

namespace syncline::certs {

// Repeats a request whose answer was lost. Fails with Unavailable, not DeadlineExceeded,
// when the peer at `address` does not prove to be the authority.
absl::Status AskAgain(const std::string& address, absl::Duration limit,
                      const std::function<absl::Status(grpc::ClientContext*)>& ask);

// Returns the identity in a certificate. Applies the same checks as for certificates of
// peers.
absl::StatusOr<Identity> CheckAnswer(const PemPair& own, const std::string& authority);

}  // namespace syncline::certs
