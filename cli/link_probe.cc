#include "cli/link_probe.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/diagnosis.h"
#include "comm/rpc/status.h"
#include "comm/rpc/status_json.h"
#include "comm/rpc/tls_probe.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

constexpr uint16_t kDefaultControlPort = 7070;
constexpr uint16_t kDefaultAdminPort = 7071;
constexpr absl::Duration kConnectTimeout = absl::Seconds(3);
// Limit of one attempt. A lost packet is sent again after a second.
constexpr absl::Duration kProbeLimit = absl::Seconds(2);
// If a firewall drops the packets, probing a hundred ports takes 14 s.
constexpr size_t kProbesAtOnce = 16;

absl::StatusOr<absl::Duration> ProbePort(const std::string& address) {
  SYNCLINE_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(address));
  const SteadyClock clock;
  const absl::Duration began = clock.Now();
  SYNCLINE_RETURN_IF_ERROR(ConnectTo(target, kProbeLimit).status());
  return clock.Now() - began;
}

bool SaysHttpIsFine(int socket) {
  constexpr absl::string_view kRequest = "GET /livez HTTP/1.1\r\nHost: admin\r\n\r\n";
  constexpr absl::string_view kFine = "HTTP/1.1 200";
  std::array<char, kFine.size()> head = {};
  return send(socket, kRequest.data(), kRequest.size(), MSG_NOSIGNAL) ==
             static_cast<ssize_t>(kRequest.size()) &&
         recv(socket, head.data(), head.size(), MSG_WAITALL) ==
             static_cast<ssize_t>(head.size()) &&
         absl::string_view(head.data(), head.size()) == kFine;
}

}  // namespace

absl::StatusOr<StatusCaller> StatusCaller::Connect(const std::string& address,
                                                   const TlsOptions& tls) {
  SYNCLINE_ASSIGN_OR_RETURN(CoordinatorCaller coordinator,
                            CoordinatorCaller::Connect(address, tls, kConnectTimeout));
  return StatusCaller(std::move(coordinator));
}

absl::StatusOr<std::string> StatusCaller::Ask() {
  const SteadyClock clock;
  const absl::Duration began = clock.Now();
  SYNCLINE_ASSIGN_OR_RETURN(const v1::StatusReply reply,
                            coordinator_.Call(&v1::Coordinator::Stub::Status,
                                              v1::StatusRequest(), kConnectTimeout));
  fastest_ = std::min(fastest_, clock.Now() - began);
  return StatusAsJson(reply);
}

std::string DefaultAdmin(const std::string& coordinator) {
  const auto control = ParseHostPort(coordinator);
  if (!control.ok() || control->port != kDefaultControlPort) return "";
  return HostPort{control->host, kDefaultAdminPort}.ToString();
}

LinkProbe ProbeAdmin(const std::string& address) {
  const auto target = ParseHostPort(address);
  if (!target.ok()) return {address, target.status()};
  const SteadyClock clock;
  const absl::Duration began = clock.Now();
  const auto plain = ConnectTo(*target, kProbeLimit);
  if (!plain.ok()) return {address, plain.status()};
  if (SaysHttpIsFine(plain->get())) return {address, clock.Now() - began};
  const absl::Duration again = clock.Now();
  const auto sealed = ConnectTo(*target, kProbeLimit);
  if (sealed.ok() && AnswersTls(sealed->get(), target->host)) {
    return {address, clock.Now() - again};
  }
  return {address,
          absl::UnavailableError(
              "it accepts connections, but answers neither /livez nor a TLS handshake; "
              "check that no other program listens there, and that it is not stopped")};
}

std::vector<LinkProbe> ProbePorts(const std::vector<std::string>& addresses) {
  std::vector<LinkProbe> found(addresses.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(kProbesAtOnce, addresses.size()); ++i) {
    threads.emplace_back([&] {
      for (size_t mine = next++; mine < addresses.size(); mine = next++) {
        found[mine] = {addresses[mine], ProbePort(addresses[mine])};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return found;
}

}  // namespace syncline
