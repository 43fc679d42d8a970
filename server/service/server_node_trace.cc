// A server's part of traces: it takes orders, and sends what its engines recorded with
// its heartbeats.
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
    // A server without a block of the job has nothing to record.
    reached = job.trained == 0 ? TraceSender::kNoStepComes : job.step;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!machine_.Knows(*traced)) reached = TraceSender::kNoStepComes;
  }
  for (auto& part : trace_.Parts(reached, &link)) link.Send(std::move(part));
}

}  // namespace syncline
