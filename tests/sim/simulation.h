// One seeded run of a whole job: 1 coordinator, 1 to 3 servers of 1 to 3 engines, 1 to 6
// workers, one thread, simulated time.
//
// The seed decides everything: the job's settings and length, message delays, the speed
// of cables and workers, which processes are killed or frozen, when and for how long.
// What must hold at the end:
//   - every block of every shard equals the reference (reference.h), bit for bit,
//     at every version;
//   - every worker holds exactly the published view of these weights;
//   - nothing was counted twice, and nothing that was not pushed;
//   - all workers reached the last step in bounded simulated time.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace syncline::sim {

// Which services die, besides workers. They restart with what they had stored.
enum class Restarts {
  kNone,
  kCoordinator,
  kServers,  // servers with journals
  kBoth,     // coordinator and servers with journals
  kBackups,  // servers die for good, and their backups take over
  kTogether  // servers with journals and backups die, for good or not
};
// Planted faults, which the simulation must find.
enum class Fault {
  kNone,

  // ---- Backups ----
  kPublishesEarly,  // a server publishes before its backup has the record
  // Faults of journals beside backups.
  kPublishesUnsynced,  // a server publishes before its journal has synced the record
  kStaleJournal,       // a server restores a journal of an earlier generation
  kStepBehind,         // the restored journal lacks the last step
  kGoesOnAlone,        // a server goes on without its journal before that is stored
  kWholeEarly,         // a journal that starts again is complete with its first block
  kLosesRecord,        // a backup acknowledges a record that it does not keep
  kStaleBackup,        // a server goes on without its backup, which later takes over
  kHalfBackup,         // a backup counts before it has everything
  kAcknowledgesOn,  // a backup that takes over still acknowledges a live server's records

  // A repeated push that was counted already counts again in the step under way.
  kCountsAgain,
  // Blocks go on stepping between the two phases of an epoch.
  kNoFence,
  // The coordinator restarts without the last record that it stored.
  kOldTerm,
  // A server restarts without knowing which step was counted last.
  kForgetsLedger,
  kGoesOnUnsynced,  // after a failed sync, the next one counts for its records, too
  kPrunesEarly,     // records before a snapshot are deleted before it is synced
  kPassesOver,      // during a snapshot, records of blocks that it lacks are not kept
  kRunsAhead,       // a worker runs one step further ahead than mode ssp allows
  kHearsNoLess,     // a worker ignores that the staleness was reduced
  kWrongWeight,     // servers give old contributions of mode asp another weight
  kDropsLate,       // the coordinator drops a stopped worker after 5 F (SimulateStopped)
  // Each push or view is sent twice over the same connection.
  kPushesTwice,
  kViewsTwice
};

// Runs the seed. Fails with Internal, which says what did not hold, and where.
absl::Status Simulate(uint64_t seed, std::string_view mode = "bsp",
                      Restarts restarts = Restarts::kNone, Fault fault = Fault::kNone);

}  // namespace syncline::sim
