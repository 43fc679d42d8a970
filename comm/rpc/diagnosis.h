// Finds out why a control address cannot be reached. gRPC only reports that it is not
// connected. This code makes one connection itself, with the same TLS files, and names
// the cause.
//
//   if (!channel.WaitForConnected(deadline)) {
//     return UnreachableError(address, timeout,
//                             DiagnoseConnection(address, tls, limit).cause);
//   }
//
// Thread safety: any thread. Blocks for up to `limit` in each of connecting, writing and
// reading, and during name resolution: up to a minute when no name server answers. An
// Inquiry does not block.
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

// Returns the cause, or a text that says that nothing is wrong. If there are several
// addresses, examines only the first.
Diagnosis DiagnoseConnection(const std::string& address, const TlsOptions& tls,
                             absl::Duration limit);

// Runs the diagnosis on a thread of its own, since a name look-up cannot be interrupted.
// The thread may outlive the Inquiry.
//
//   const Inquiry inquiry(address, tls, limit);
//   const Diagnosis found = inquiry.Within(absl::Seconds(3));
class Inquiry {
 public:
  Inquiry(const std::string& address, const TlsOptions& tls, absl::Duration limit);

  // Returns nullopt while the diagnosis runs.
  std::optional<Diagnosis> found() const;
  // Waits for up to `patience`, then returns the result or SoFar().
  Diagnosis Within(absl::Duration patience) const;
  // Returns what the diagnosis waits for: a name look-up, or a peer that does not answer.
  Diagnosis SoFar() const;

 private:
  struct Answer;

  std::shared_ptr<Answer> answer_;
};

// Returns a connected socket, or the error. `limit` applies to connecting to each address
// of the host, and then to each read and write. Calls `looked_up` once the addresses are
// known.
absl::StatusOr<UniqueFd> ConnectTo(
    const HostPort& target, absl::Duration limit,
    absl::FunctionRef<void()> looked_up = [] {});

}  // namespace syncline
