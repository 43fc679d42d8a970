#include "comm/base/crowd.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"

namespace syncline {
namespace {

std::string Numbers(int family, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> said = {};
  inet_ntop(family, address, said.data(), said.size());
  return said.data();
}

}  // namespace

std::string SourceOf(const sockaddr& address) {
  if (address.sa_family != AF_INET6) {
    return Numbers(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  in6_addr host = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&host)) return Numbers(AF_INET, &host.s6_addr[12]);
  std::fill(std::begin(host.s6_addr) + 8, std::end(host.s6_addr), 0);
  return absl::StrCat(Numbers(AF_INET6, &host), "/64");
}

std::string SourceOf(std::string_view peer) {
  std::string host(peer.substr(0, peer.rfind(':')));
  if (!host.starts_with('[') || !host.ends_with(']')) return host;
  host = host.substr(1, host.size() - 2);
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  if (inet_pton(AF_INET6, host.c_str(), &address.sin6_addr) != 1) return host;
  return SourceOf(reinterpret_cast<const sockaddr&>(address));
}

void Crowd::Add(uint64_t id, std::string source) {
  SYNCLINE_CHECK(sources_.empty() || id > sources_.rbegin()->first);
  ++counts_[source];
  sources_.emplace(id, std::move(source));
}

void Crowd::Remove(uint64_t id) {
  const auto found = sources_.find(id);
  if (found == sources_.end()) return;
  const auto count = counts_.find(found->second);
  if (--count->second == 0) counts_.erase(count);
  sources_.erase(found);
}

uint64_t Crowd::ToMakeRoom() const {
  const size_t most = most_of_one_source();
  return std::ranges::find_if(
             sources_, [&](const auto& one) { return counts_.at(one.second) == most; })
      ->first;
}

std::vector<uint64_t> Crowd::ToMakeMuchRoom() const {
  std::vector<uint64_t> going;
  if (empty()) return going;
  const std::string& source = sources_.at(ToMakeRoom());
  const size_t half = (counts_.at(source) + 1) / 2;
  for (const auto& [id, its] : sources_) {
    if (its == source && going.size() < half) going.push_back(id);
  }
  return going;
}

size_t Crowd::most_of_one_source() const {
  size_t most = 0;
  for (const auto& [source, count] : counts_) most = std::max(most, count);
  return most;
}

}  // namespace syncline
