// `syncline replay`: a job again from its journal, without its servers and workers.
//
//   syncline replay --journal /data/journal --job bert --out weights.safetensors
//   syncline replay --journal a --journal b --job bert --to 1200 --verify --out w.safetensors
//   syncline replay --journal /data/journal --job bert --checkpoint-out ckpt
//   syncline replay --journal /data/journal --job bert --run 9f03c1d2a4b5e677 --verify
#pragma once

#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/command.h"
#include "server/journal/replay.h"

namespace syncline {

// Whether its journal leads to a step at all: not in mode asp, where blocks have none in
// common.
absl::StatusOr<bool> LeadsToAStep(const JournalRun& run);

// Makes a checkpoint of the last step that the run's journal has, and compares digests on
// the way. `checkpoints`: of the job; made where it is missing. Errors are ReplayInto's;
// FailedPrecondition for a job of mode asp, which has no step.
absl::StatusOr<ReplaySummary> ReplayToCheckpoint(JournalRun run,
                                                 const std::string& checkpoints);

void AddReplay(CLI::App& app, Command* selected);

}  // namespace syncline
