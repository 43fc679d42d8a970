// Who is dropped, and why: a pure function of what is known about the members and the
// time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/timeouts.h"

namespace syncline {

// What the coordinator knows about one worker's life.
struct Lease {
  uint32_t rank = 0;
  bool connected = true;
  absl::Duration heard_at;         // last message of any kind
  absl::Duration disconnected_at;  // when !connected
};

struct Drop {
  uint32_t rank = 0;
  std::string reason;
};

// In rank order of `leases`. Two ways to die:
//   silent        nothing heard for a lease
//   disconnected  the stream broke and did not come back within a quarter of the failure
//                 timeout
// Members who beat but stand still are found by what servers say: stall.h.
std::vector<Drop> ComputeDrops(absl::Duration now, const std::vector<Lease>& leases,
                               const Timeouts& timeouts);

}  // namespace syncline
