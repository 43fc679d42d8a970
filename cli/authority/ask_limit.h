// How often a host may ask: so many times at once, and then so many each second. A bounded
// table; hosts that no longer fit share one allowance.
//
// Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace syncline::certs {

// What shares an allowance: of a peer as gRPC names it ("ipv4:10.0.0.7:41234"), the address; of
// IPv6 the first 64 bits, since a host chooses the others as it likes.
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

  // Whether `host` may ask at `now`, which never goes back. If so, it has asked.
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
