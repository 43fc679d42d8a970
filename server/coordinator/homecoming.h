// A job that waits for its members, since the coordinator was started anew: which servers
// are still to come, and what those that are back have heard of.
//
// Thread safety: none; pure, but for what it remembers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "absl/time/time.h"
#include "server/coordinator/held_job.h"

namespace syncline {

struct Homecoming {
  std::set<uint32_t> servers = {};            // that are still missing
  uint64_t prepared = 0;                      // the highest epoch that any has prepared
  std::map<uint32_t, uint64_t> decided = {};  // by server: all steps below
  std::map<uint32_t, uint64_t> closed = {};   // likewise
  std::optional<absl::Duration> since = {};

  bool Awaits(uint32_t server) const { return servers.contains(server); }
  bool HasAllServers() const { return servers.empty(); }
  // The server is back with what it holds. False when it was not awaited.
  bool Take(uint32_t server, const HeldJob& held);
  // Another one has what it had.
  void Replace(uint32_t server, uint32_t successor);
  // Whether a server that is back has not heard of the decisions of all steps below that.
  bool LacksDecision(uint32_t server, uint64_t below) const;
  // Likewise, that this step was closed.
  bool LacksClosed(uint32_t server, uint64_t step) const;
};

}  // namespace syncline
