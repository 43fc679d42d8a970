// A bounded set of waiting clients, which selects the one to remove when another one
// comes: the oldest one of the source that has the most. So a flood from one source only
// displaces itself. If all sources have equally many, it is the oldest of all, which had
// the most time.
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

// Returns the source of an address: "10.0.0.7", or for IPv6 the network, "2001:db8::/64",
// since one host may own all of its addresses.
std::string SourceOf(const sockaddr& address);
// Returns the same for "10.0.0.7:4711" and "[2001:db8::1]:4711". Other text is returned
// without its last colon and what follows it.
std::string SourceOf(std::string_view peer);

class Crowd {
 public:
  // Ids must increase: the oldest entry has the lowest.
  void Add(uint64_t id, std::string source);
  void Remove(uint64_t id);
  bool contains(uint64_t id) const { return sources_.contains(id); }
  bool empty() const { return sources_.empty(); }
  size_t size() const { return sources_.size(); }

  // Returns the entry to remove.
  // REQUIRES: !empty().
  uint64_t ToMakeRoom() const;
  // Returns the entries to remove when the process has no descriptor left, oldest first:
  // half of those of the source that has the most.
  std::vector<uint64_t> ToMakeMuchRoom() const;
  // REQUIRES: contains(id).
  const std::string& source(uint64_t id) const { return sources_.at(id); }

 private:
  // Returns the number of entries of the source that has the most.
  size_t most_of_one_source() const;

  std::map<uint64_t, std::string> sources_;  // by id
  std::map<std::string, size_t> counts_;     // by source
};

}  // namespace syncline
