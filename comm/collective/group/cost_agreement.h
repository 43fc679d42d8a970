// Gives all members of a group the same costs, so that they choose the same algorithms.
//
// Rank 0 decides: built-in costs, those of a file, or measured ones. What is measured is
// measured by one pair of ranks for each class of pairs (one host, two hosts), and sent
// to all.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collective/group/costs.h"

namespace syncline::collective {

class Group;

struct CostWish {
  // "": built-in costs. "probe": measured ones. Otherwise a file, which rank 0 reads; what
  // the group needs and the file lacks is measured and added to it.
  std::string setting;
  std::vector<int> host_of;  // Meeting::host_of
  absl::Duration timeout;    // of each operation
};

struct AgreedCosts {
  Costs costs;
  CostSource source = CostSource::kBuiltIn;
};

// Waits for all ranks, which must call it as their first operation. Fails, and ends the
// group on all ranks, with InvalidArgument if rank 0 cannot use its file, and as Run.
absl::StatusOr<AgreedCosts> AgreeOnCosts(const CostWish& wish, Group& group);

}  // namespace syncline::collective
