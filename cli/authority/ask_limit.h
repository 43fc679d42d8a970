// How often a host may ask: so many times at once, and then so many each second. A bounded
// table; hosts that no longer fit share one allowance.
//
// Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace syncline::certs {

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
