// Probes of this machine for `syncline diagnose`: the coordinator's control and admin
// ports, and other ports that the user names. Each probe has a time limit.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto caller, StatusCaller::Connect(address, tls));
//   SYNCLINE_ASSIGN_OR_RETURN(const std::string status, caller.Ask());
//   probes.others = ProbePorts({"10.0.0.2:7100"});
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/link_report.h"
#include "comm/rpc/coordinator_call.h"
#include "comm/rpc/tls.h"

namespace syncline {

// Asks a coordinator for its status, on one connection. Not thread-safe.
class StatusCaller {
 public:
  // Fails with Failure::kUnreachable and the cause when there is no answer.
  static absl::StatusOr<StatusCaller> Connect(const std::string& address,
                                              const TlsOptions& tls);
  // Returns the status as StatusAsJson has it.
  absl::StatusOr<std::string> Ask();
  // Shortest of the calls so far: slower ones may have waited for a core of this machine.
  absl::Duration fastest() const { return fastest_; }

 private:
  explicit StatusCaller(CoordinatorCaller coordinator)
      : coordinator_(std::move(coordinator)) {}

  CoordinatorCaller coordinator_;
  absl::Duration fastest_ = absl::InfiniteDuration();
};

// Returns the default admin address for the coordinator at `coordinator`. Empty unless
// that has the default port.
std::string DefaultAdmin(const std::string& coordinator);

// Measures an admin port: the time until it answers /livez, or a TLS handshake.
LinkProbe ProbeAdmin(const std::string& address);

// Measures in parallel how long connections take. Results are in the order of
// `addresses`.
std::vector<LinkProbe> ProbePorts(const std::vector<std::string>& addresses);

}  // namespace syncline
