// Decides which members are dropped, and why: a pure function of what is known about the
// members and the time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/timeouts.h"

namespace syncline {

// What the coordinator knows about the process of one worker.
struct Lease {
  uint32_t rank = 0;
  bool connected = true;
  absl::Duration heard_at;         // last message of any kind
  absl::Duration disconnected_at;  // if !connected
};

struct Drop {
  uint32_t rank = 0;
  std::string reason;
};

// Returns the members to drop, in the order of `leases`. There are two reasons:
// silent        nothing was heard for the length of a lease
// disconnected  the stream broke and did not come back within a quarter of the failure
//               timeout
// Members that send heartbeats but make no progress are found with the servers' reports
// (stall.h).
std::vector<Drop> ComputeDrops(absl::Duration now, const std::vector<Lease>& leases,
                               const Timeouts& timeouts);

}  // namespace syncline
