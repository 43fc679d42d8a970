// A server's side of traces: orders in, what its engines recorded out with heartbeats.
#include <utility>

#include "server/service/server_node.h"

namespace syncline {

void ServerNode::Take(const v1::TraceOrder& order) {
  auto answer = trace_.Take(order, 0);
  if (!answer) return;
  absl::MutexLock lock(&mutex_);
  trace_answer_ = std::move(answer);
  changed_.SignalAll();
}

void ServerNode::SendTrace(ControlLink& link, const Heartbeat& beat) {
  const std::optional<uint32_t> traced = trace_.job();
  if (!traced) return;
  uint64_t reached = 0;
  for (const JobProgress& job : beat.jobs) {
    if (job.job != *traced) continue;
    // Without a block of the job it has nothing to record.
    reached = job.trained == 0 ? TraceSender::kNoStepComes : job.step;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!jobs_.contains(*traced)) reached = TraceSender::kNoStepComes;
  }
  for (auto& part : trace_.Parts(reached, &link)) link.Send(std::move(part));
}

}  // namespace syncline
