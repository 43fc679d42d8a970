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

// Accepts "host:port", "[v6]:port" and ":port" (any interface). InvalidArgument
// otherwise.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// "h1:7070,h2:7070": where one of several may answer, each as ParseHostPort takes it and with
// a port. InvalidArgument for none, for one that is wrong, and for one that is there twice.
absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view text);

// Whether every address that `host` resolves to is a loopback address. Unresolvable names
// are not.
bool IsLoopback(const std::string& host);

// Tries to bind `address` and lets it go again. Failure::kPortInUse with the fix when
// something listens there already; InvalidArgument when this host has no such address.
// Servers call it first, because what their libraries report about a failed bind is one
// bit.
absl::Status CheckCanListen(const HostPort& address);

// Listens on `address`, and fills in its port when that is 0. Errors as CheckCanListen.
absl::StatusOr<UniqueFd> Listen(HostPort& address);

// Listens on all addresses that `address` names, and fills in its port when that is 0. Any
// interface means both kinds of addresses, where the kernel has both. The listeners do not
// block. Errors as CheckCanListen, when it is none of them.
absl::StatusOr<std::vector<UniqueFd>> ListenAtAll(HostPort& address);

// A port of `host` that nothing listens on now. Somebody else may take it before the
// caller does: only for programs that must be told a port; servers of ours listen on port
// 0 instead.
absl::StatusOr<int> PickFreePort(const std::string& host);

}  // namespace syncline
