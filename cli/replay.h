// `syncline replay`: recomputes a job from its journal, without servers and workers.
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

// Whether a replay of the journal yields a step. Not in mode asp, whose blocks have no
// common step.
absl::StatusOr<bool> LeadsToAStep(const JournalRun& run);

// Makes a checkpoint of the last step in the run's journal, and compares digests on the
// way. `checkpoints`: the job's directory, created if missing. Fails like ReplayInto, and
// with FailedPrecondition for a job of mode asp.
absl::StatusOr<ReplaySummary> ReplayToCheckpoint(JournalRun run,
                                                 const std::string& checkpoints);

void AddReplay(CLI::App& app, Command* selected);

}  // namespace syncline
