#include "cli/authority/ask_limit.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace syncline::certs {

std::string HostOfPeer(std::string_view peer) {
  std::string host(peer.substr(0, peer.rfind(':')));
  if (!absl::StartsWith(host, "ipv6:")) return host;
  std::string address = absl::StrReplaceAll(
      host.substr(5), {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  address.resize(std::min(address.find('%'), address.size()));  // without the interface
  std::array<uint8_t, 16> bytes = {};
  if (inet_pton(AF_INET6, address.c_str(), bytes.data()) != 1) return host;
  // An IPv4 peer of a socket for both protocols is written as ::ffff:10.0.0.7.
  const bool is_ipv4 = std::all_of(bytes.begin(), bytes.begin() + 10,
                                   [](uint8_t byte) { return byte == 0; }) &&
                       bytes[10] == 0xff && bytes[11] == 0xff;
  if (is_ipv4) return address;
  std::fill(bytes.begin() + 8, bytes.end(), uint8_t{0});
  std::array<char, INET6_ADDRSTRLEN> written = {};
  inet_ntop(AF_INET6, bytes.data(), written.data(), written.size());
  return std::string(written.data()) + "/64";
}

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
    // Hosts with a full allowance can be forgotten: they start again with a full one.
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
