// One seeded run of a whole job: 1 coordinator, 1 to 3 servers of 1 to 3 engines, 1 to 6
// workers, one thread, simulated time.
//
// The seed decides everything: the job's settings and length, message delays, the speed of
// cables and workers, who is killed or frozen when, and for how long. What must hold at the
// end:
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
  kBackups,  // servers die and stay dead: their backups take over
  kTogether  // both: they have journals and backups, and come back or not
};
// What is planted, and must be found.
enum class Fault {
  kNone,
  // Of backups.
  kPublishesEarly,
  kPublishesUnsynced,  // of journals beside them
  kStaleJournal,       // likewise: that of an earlier generation is taken
  kStepBehind,         // likewise: what it goes on from lacks the last step
  kGoesOnAlone,  // likewise: one that has ended is not waited for, before that is stored
  kWholeEarly,   // likewise: one that begins anew is whole with its first block
  kLosesRecord,
  kStaleBackup,
  kHalfBackup,
  // A push that was counted is counted again when it is repeated, in the step under way.
  kCountsAgain,
  // Between the two phases of an epoch blocks go on stepping.
  kNoFence,
  // The coordinator comes back without the last thing that it had stored.
  kOldTerm,
  // What a server comes back with has not which step was counted last.
  kForgetsLedger,
  kGoesOnUnsynced,  // a sync fails, and the next one counts for what that was for
  kPrunesEarly,     // what precedes a snapshot is deleted before that is synced
  kPassesOver,   // records are not kept of a block that a snapshot has still to come to
  kRunsAhead,    // a worker takes the staleness of mode ssp for one more
  kHearsNoLess,  // a worker goes on as before when the staleness becomes smaller
  kWrongWeight,  // servers weigh old contributions of mode asp in another way
  kDropsLate,    // the coordinator drops whoever is stopped after 5 F (SimulateStopped)
  // Each goes two times over the same connection.
  kPushesTwice,
  kViewsTwice
};

// Internal names what did not hold, and where.
absl::Status Simulate(uint64_t seed, std::string_view mode = "bsp",
                      Restarts restarts = Restarts::kNone, Fault fault = Fault::kNone);

}  // namespace syncline::sim
