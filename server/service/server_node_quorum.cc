// What a server has to do with quorums: its shards say who has given enough, and hear with
// whom a step is closed (ADR 26).
#include <utility>

#include "server/service/server_node.h"

namespace syncline {

void ServerNode::On(const StepClosed& closed) {
  {
    absl::MutexLock lock(&mutex_);
    const auto job = jobs_.find(closed.job);
    if (job == jobs_.end()) return;  // it ended meanwhile
    job->second.memory.Close(closed);
  }
  ApplyToAll(closed.job, ShardClosed{closed.step, closed.incarnations});
}

void ServerNode::ReportHeld(uint32_t engine, uint32_t id, const ShardHeld& held) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  const StepHeld report = {id, job->second.first_shard + engine, held.step,
                           held.incarnations};
  job->second.memory.Hold(report);
  outbox_.push_back(report);
  changed_.SignalAll();
}

}  // namespace syncline
