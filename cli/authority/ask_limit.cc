#include "cli/authority/ask_limit.h"

#include <algorithm>

namespace syncline::certs {

bool AskLimit::Take(const std::string& host, absl::Duration now) {
  Allowance& allowance = Of(host, now);
  allowance = {LeftAt(allowance, now), now};
  if (allowance.left < 1) return false;
  allowance.left -= 1;
  return true;
}

AskLimit::Allowance& AskLimit::Of(const std::string& host, absl::Duration now) {
  const auto found = hosts_.find(host);
  if (found != hosts_.end()) return found->second;
  if (hosts_.size() >= options_.max_hosts) {
    // Those that have not asked for long are as if they had never been there.
    std::erase_if(hosts_, [&](const auto& one) {
      return LeftAt(one.second, now) >= options_.at_once;
    });
  }
  const std::string key = hosts_.size() < options_.max_hosts ? host : "others";
  return hosts_.try_emplace(key, Allowance{options_.at_once, now}).first->second;
}

double AskLimit::LeftAt(const Allowance& allowance, absl::Duration now) const {
  const double more = absl::ToDoubleSeconds(now - allowance.at) * options_.per_second;
  return std::min(allowance.left + more, options_.at_once);
}

}  // namespace syncline::certs
