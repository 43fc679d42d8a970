#include "server/coordinator/trace_targets.h"

#include <string_view>
#include <vector>

#include "comm/base/unknown_job.h"
#include "server/coordinator/coordinator_impl.h"

namespace syncline {

TraceTargets Job::ToTrace() const {
  TraceTargets targets{.job = id_, .members = {}, .declared = declared_};
  for (size_t place = 0; place < places_.size(); ++place) {
    const JobServer& server = places_[place];
    if (!IsHere(place)) continue;
    targets.members.push_back({.role = TraceTarget::Role::kServer,
                               .number = server.server,
                               .incarnation = server.incarnation,
                               .name = server.name,
                               .connection = server.connection});
  }
  for (const auto& [rank, worker] : workers_) {
    if (!worker.welcomed || !worker.connected || worker.is_awaited) continue;
    targets.members.push_back({.role = TraceTarget::Role::kWorker,
                               .number = rank,
                               .incarnation = worker.incarnation,
                               .name = worker.name,
                               .connection = worker.connection});
  }
  return targets;
}

absl::StatusOr<TraceTargets> Coordinator::Impl::TraceTargetsOf(
    const std::string& name) const {
  const auto job = jobs_.find(name);
  if (job != jobs_.end() && !job->second->IsOver()) return job->second->ToTrace();
  std::vector<std::string_view> names;
  for (const auto& [running, one] : jobs_) {
    if (!one->IsOver()) names.push_back(running);
  }
  return UnknownJob(name, names, JobSet::kRunning);
}

absl::StatusOr<TraceTargets> Coordinator::TraceTargetsOf(const std::string& job) const {
  return impl_->TraceTargetsOf(job);
}

}  // namespace syncline
