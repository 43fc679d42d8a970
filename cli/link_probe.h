// What `syncline diagnose` tries from this machine: the coordinator's control and admin
// ports, and others that its user names. Each try has a limit.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto caller, StatusCaller::Connect(address, tls));
//   SYNCLINE_ASSIGN_OR_RETURN(const std::string status, caller.Ask());
//   probes.others = ProbePorts({"10.0.0.2:7100"});
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/link_report.h"
#include "comm/rpc/tls.h"
#include "grpcpp/channel.h"

namespace syncline {

// Asks a coordinator for its status, on one connection. Thread safety: none.
class StatusCaller {
 public:
  // Failure::kUnreachable with the cause when nobody answers.
  static absl::StatusOr<StatusCaller> Connect(const std::string& address,
                                              const TlsOptions& tls);
  // As StatusAsJson.
  absl::StatusOr<std::string> Ask();
  // The shortest of the calls so far: others may have waited for a core of this machine.
  absl::Duration fastest() const { return fastest_; }

 private:
  explicit StatusCaller(std::shared_ptr<grpc::Channel> channel)
      : channel_(std::move(channel)) {}

  std::shared_ptr<grpc::Channel> channel_;
  absl::Duration fastest_ = absl::InfiniteDuration();
};

// Where an admin port is by default whose coordinator is at `coordinator`: empty unless
// that has the default port, too.
std::string DefaultAdmin(const std::string& coordinator);

// How long what listens at `address` takes to answer as an admin port does: /livez, or a TLS
// handshake.
LinkProbe ProbeAdmin(const std::string& address);

// How long connections take, side by side, in the order of `addresses`.
std::vector<LinkProbe> ProbePorts(const std::vector<std::string>& addresses);

}  // namespace syncline
