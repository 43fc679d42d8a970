// One seeded run of a whole job: 1 coordinator, 2 servers, 3 workers, one thread,
// simulated time.
//
// The seed decides everything: the job's settings, message delays, losses, repetitions
// and reorderings, the speed of the workers, who is killed or frozen when, and for how
// long. What must hold at the end:
//   - every block of every shard equals the reference (reference.h), bit for bit,
//     at every version;
//   - every worker holds exactly the published view of these weights;
//   - nothing was counted twice, or without having been pushed;
//   - the job got there: all workers reached the last step in bounded simulated time.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace syncline::sim {

// Whether the coordinator or servers die, too, and come back with what they had stored.
enum class Restarts {
  kNone,
  kCoordinator,
  kServers,  // which have journals
  kBoth,
  kBackups  // servers die and stay dead: their backups take over
};
// What is planted, and must be found.
enum class Fault { kNone, kPublishesEarly, kLosesRecord, kStaleBackup, kHalfBackup };

// Internal names what did not hold, and where.
absl::Status Simulate(uint64_t seed, std::string_view mode = "bsp",
                      Restarts restarts = Restarts::kNone, Fault fault = Fault::kNone);

}  // namespace syncline::sim
