// "host:port" addresses: parsing, and whether one is reachable from this host only.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort("[::1]:7070"));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/base/unique_fd.h"

namespace syncline {

struct HostPort {
  std::string host;   // without brackets
  uint16_t port = 0;  // 0 asks the kernel for a free one when listening

  // "host:port", with brackets around an IPv6 host.
  std::string ToString() const;
};

// Accepts "host:port", "[v6]:port" and ":port" (any interface). Fails with
// InvalidArgument otherwise.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// Parses a list of alternative addresses, "h1:7070,h2:7070". Each must be valid for
// ParseHostPort and have a port. Fails with InvalidArgument for an empty list, an invalid
// entry and a duplicate.
absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view text);

// Returns true if every address that `host` resolves to is a loopback address, and false
// if the name cannot be resolved.
bool IsLoopback(const std::string& host);

// Binds `address` for a moment. Fails with Failure::kPortInUse, with advice, when another
// process listens there, and with InvalidArgument when this host has no such address.
// Servers call it first, since their libraries only report that a bind failed, not why.
absl::Status CheckCanListen(const HostPort& address);

// Listens on `address`; sets its port if that is 0. Fails like CheckCanListen.
absl::StatusOr<UniqueFd> Listen(HostPort& address);

// Listens on all addresses that `address` resolves to; sets its port if that is 0. "Any
// interface" means IPv4 and IPv6 if the kernel has both. The listeners do not block.
// Fails like CheckCanListen if no address works.
absl::StatusOr<std::vector<UniqueFd>> ListenAtAll(HostPort& address);

// Returns a port of `host` that is free now. Another process may take it before the
// caller does, so use it only for programs that must be given a port. Our servers listen
// on port 0 instead.
absl::StatusOr<int> PickFreePort(const std::string& host);

}  // namespace syncline
