// Those who wait at a door that has room for so many, and who of them goes when one more
// comes: of the source that has most of them the oldest, so that a flood from one source
// crowds out itself. Where all sources have as many, the oldest of all: it had the most time.
//
//   if (crowd.size() >= kMost) End(crowd.ToMakeRoom());
//   crowd.Add(id, SourceOf(peer));
//
// Thread safety: none.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace syncline {

// "10.0.0.7"; of IPv6 the network, as one host may have all of its addresses:
// "2001:db8::/64".
std::string SourceOf(const sockaddr& address);
// The same of "10.0.0.7:4711" and "[2001:db8::1]:4711"; anything else as it is, without what
// follows its last colon.
std::string SourceOf(std::string_view peer);

class Crowd {
 public:
  // Ids grow: the oldest has the least.
  void Add(uint64_t id, std::string source);
  void Remove(uint64_t id);
  bool contains(uint64_t id) const { return sources_.contains(id); }
  bool empty() const { return sources_.empty(); }
  size_t size() const { return sources_.size(); }

  // REQUIRES: !empty().
  uint64_t ToMakeRoom() const;
  // Those who go when the process has no descriptor left, oldest first: half of the source
  // that has most of them.
  std::vector<uint64_t> ToMakeMuchRoom() const;
  // REQUIRES: contains(id).
  const std::string& source(uint64_t id) const { return sources_.at(id); }

 private:
  // How many the source has that has most of them.
  size_t most_of_one_source() const;

  std::map<uint64_t, std::string> sources_;  // by id
  std::map<std::string, size_t> counts_;     // by source
};

}  // namespace syncline
