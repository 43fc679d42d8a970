#include "server/machine/server_progress.h"

#include <algorithm>
#include <cstddef>

namespace syncline {

void AddProgress(const ShardProgress& shard, JobProgress& job) {
  // A shard without trained blocks has no step.
  if (shard.trained > 0) {
    job.step = job.trained == 0 ? shard.step : std::min(job.step, shard.step);
  }
  job.trained += shard.trained;
  job.undecided += shard.undecided;
  job.unseeded += shard.unseeded;
  job.completed += shard.completed;
  auto place = job.members.begin();
  for (const ShardProgress::Member& member : shard.members) {
    while (place != job.members.end() && place->rank < member.rank) ++place;
    if (place == job.members.end() || place->rank != member.rank) {
      place = job.members.insert(place, {.rank = member.rank});
    }
    place->owed += member.owed;
    place->waits += member.waits;
    place->contributed += member.contributed;
    place->moved += member.moved;
  }
}

void AddPhases(const ServerPhases& engine, ServerPhases& server) {
  server.steps = std::max(server.steps, engine.steps);
  for (size_t i = 0; i < engine.seconds.size(); ++i) {
    server.seconds[i] = std::max(server.seconds[i], engine.seconds[i]);
  }
}

void AddRecords(const RecordSender::Progress& engine, RecordSender::Progress& server) {
  server.taken = std::max(server.taken, engine.taken);
  server.durable = std::min(server.durable, engine.durable);
  server.bytes += engine.bytes;
}

}  // namespace syncline
