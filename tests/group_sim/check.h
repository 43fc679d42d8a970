// Checks that the members of a group saw what group_simulation.h promises.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/group_sim/life.h"

namespace syncline::group_sim {

// The members of one group.
struct Epoch {
  EpochPlan plan;
  std::vector<std::unique_ptr<Life>> lives;  // by rank
};

// Returns the longest time between the last cause and the end of an operation, except for
// operations that end at their deadline.
absl::Duration MostDelay(const Plan& plan);

// Checks one member that is over and not dead.
absl::Status CheckLife(const Epoch& epoch, const Life& life, absl::Duration most_delay);
// Checks that nothing was written since the member's operations ended.
absl::Status CheckUntouched(const Life& life);

}  // namespace syncline::group_sim
