// Adds the progress of a server's engines up to that of the server, for its heartbeats.
//
// Thread safety: pure functions.
#pragma once

#include "comm/base/step_phases.h"
#include "server/coordinator/coordinator.h"
#include "server/links/record_link.h"
#include "server/shard/shard.h"

namespace syncline {

// Adds one shard's progress to that of its server.
void AddProgress(const ShardProgress& shard, JobProgress& job);

// Engines work side by side: for each phase the engine with the longest time counts.
void AddPhases(const ServerPhases& engine, ServerPhases& server);

// Adds the records of one engine: `taken` becomes the highest, `durable` the lowest, and
// `bytes` the sum.
void AddRecords(const RecordSender::Progress& engine, RecordSender::Progress& server);

}  // namespace syncline
