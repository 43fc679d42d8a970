// Whether what a group's members saw of an epoch is what group_simulation.h promises.
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

// How long after its last cause the end of an operation may be, deadlines aside.
absl::Duration MostDelay(const Plan& plan);

// Of one member that is over and not dead.
absl::Status CheckLife(const Epoch& epoch, const Life& life, absl::Duration most_delay);
// Nothing was written since its operations ended.
absl::Status CheckUntouched(const Life& life);

}  // namespace syncline::group_sim
