// A job that waits for its members after a coordinator restart: the servers that have not
// come back yet, and what the others have heard of.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "absl/time/time.h"
#include "server/coordinator/held_job.h"

namespace syncline {

struct Homecoming {
  std::set<uint32_t> servers = {};  // servers that have not come back
  uint64_t prepared = 0;            // highest epoch that any of them has prepared
  std::map<uint32_t, uint64_t> decided =
      {};  // by server: all steps below are decided there
  std::map<uint32_t, uint64_t> closed =
      {};  // by server: all steps below are closed there
  std::optional<absl::Duration> since = {};

  bool Awaits(uint32_t server) const { return servers.contains(server); }
  bool HasAllServers() const { return servers.empty(); }
  // A server has come back with `held`. Returns false if it was not awaited.
  bool Take(uint32_t server, const HeldJob& held);
  // Waits for `successor`, which has the state of `server`, instead.
  void Replace(uint32_t server, uint32_t successor);
  // Whether a server that has come back lacks the decision of some step below `below`.
  bool LacksDecision(uint32_t server, uint64_t below) const;
  // Whether it has not heard that this step was closed.
  bool LacksClosed(uint32_t server, uint64_t step) const;
};

}  // namespace syncline
