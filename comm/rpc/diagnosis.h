// Why a control address cannot be reached. gRPC only says that it is not connected; this
// makes one connection by hand, with the same TLS files, and names the cause.
//
//   if (!channel.WaitForConnected(deadline)) {
//     return UnreachableError(address, timeout,
//                             DiagnoseConnection(address, tls, limit).cause);
//   }
//
// Thread safety: any thread. Blocks for up to `limit` in each of connecting, writing and
// reading, and for as long as the host takes to resolve a name: up to a minute where no
// name server answers. An Inquiry does not.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/address.h"
#include "comm/rpc/tls.h"
#include "comm/rpc/tls_probe.h"

namespace syncline {

// Says so when it finds nothing wrong. Of several addresses the first is looked at.
Diagnosis DiagnoseConnection(const std::string& address, const TlsOptions& tls,
                             absl::Duration limit);

// The same on a thread of its own, since looking up a name cannot be stopped: that thread
// may outlive whoever wants to know.
//
//   const Inquiry inquiry(address, tls, limit);
//   const Diagnosis found = inquiry.Within(absl::Seconds(3));
class Inquiry {
 public:
  Inquiry(const std::string& address, const TlsOptions& tls, absl::Duration limit);

  // Nothing while it is under way.
  std::optional<Diagnosis> found() const;
  // SoFar() after that time.
  Diagnosis Within(absl::Duration patience) const;
  // What holds it up: the look-up of a name, or somebody who does not answer.
  Diagnosis SoFar() const;

 private:
  struct Answer;

  std::shared_ptr<Answer> answer_;
};

// A connected socket, or why there is none. `limit` holds for connecting to each of its
// addresses, and then for each read and write. Calls `looked_up` once these are known.
absl::StatusOr<UniqueFd> ConnectTo(
    const HostPort& target, absl::Duration limit,
    absl::FunctionRef<void()> looked_up = [] {});

}  // namespace syncline
