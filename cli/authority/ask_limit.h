// Limits how often each host may ask: `at_once` requests in a burst, then `per_second`.
// The table is bounded; hosts that do not fit into it share one allowance.
//
// Pure, without a clock. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace syncline::certs {

// Returns the key of the allowance for a peer named as gRPC does ("ipv4:10.0.0.7:41234"):
// the address. For IPv6 only its first 64 bits, since a host chooses the others freely.
std::string HostOfPeer(std::string_view peer);

class AskLimit {
 public:
  struct Options {
    double per_second = 1;
    double at_once = 10;
    size_t max_hosts = 4096;
  };

  AskLimit() = default;
  explicit AskLimit(const Options& options) : options_(options) {}

  // Returns whether `host` may ask at `now`, and counts the request if so. `now` must
  // never decrease.
  bool Take(const std::string& host, absl::Duration now);

 private:
  struct Allowance {
    double left = 0;
    absl::Duration at = {};
  };

  Allowance& Of(const std::string& host, absl::Duration now);
  double LeftAt(const Allowance& allowance, absl::Duration now) const;

  const Options options_ = {};
  std::map<std::string, Allowance> hosts_;
};

}  // namespace syncline::certs
