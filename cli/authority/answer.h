// What join and renew have in common: a question that may be repeated, and a certificate
// that is looked at before it is kept.
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

// The same question again when the answer is lost. Unavailable, not DeadlineExceeded, when
// what answers at `address` does not prove to be the authority.
absl::Status AskAgain(const std::string& address, absl::Duration limit,
                      const std::function<absl::Status(grpc::ClientContext*)>& ask);

// Whose it is. What came is believed by the same rules as everything else of the wire.
absl::StatusOr<Identity> CheckAnswer(const PemPair& own, const std::string& authority);

}  // namespace syncline::certs
