// Calls by operators and launchers that concern jobs.
#include <string>
#include <string_view>
#include <vector>

#include "comm/base/unknown_job.h"
#include "server/coordinator/coordinator_impl.h"

namespace syncline {

Job* Coordinator::Impl::FindForCaller(const std::string& name) {
  const auto job = jobs_.find(name);
  if (job != jobs_.end() && !job->second->IsOver()) return job->second.get();
  std::vector<std::string_view> names;
  for (const auto& [running, one] : jobs_) {
    if (!one->IsOver()) names.push_back(running);
  }
  outbox_.Add(CallAnswer{UnknownJob(name, names, JobSet::kRunning)});
  return nullptr;
}

void Coordinator::Impl::OnUpdate(const UpdateJob& update) {
  Job* job = FindForCaller(update.job);
  if (job == nullptr) return;
  ServerMemories memory;
  for (const auto& [number, server] : servers_) memory[number] = MemoryOf(server);
  const absl::StatusOr<ChangedSettings> changed = job->Update(update, memory);
  outbox_.Add(CallAnswer{.status = changed.status(),
                         .changed = changed.value_or(ChangedSettings())});
}

void Coordinator::Impl::OnCreate(const CreateCheckpoint& create) {
  Job* job = FindForCaller(create.job);
  if (job == nullptr) return;
  const absl::StatusOr<uint64_t> finished = job->CreateCheckpoint();
  outbox_.Add(CallAnswer{.status = finished.status(),
                         .finished_checkpoints = finished.value_or(0)});
}

void Coordinator::Impl::OnExclude(const ExcludeWorker& exclude) {
  Job* job = FindForCaller(exclude.job);
  if (job == nullptr) return;
  outbox_.Add(CallAnswer{job->Exclude(exclude, now_)});
}

void Coordinator::Impl::OnExit(const WorkerExit& exit) {
  Job* job = FindForCaller(exit.job);
  if (job == nullptr) return;
  outbox_.Add(CallAnswer{job->OnExit(exit)});
}

void Coordinator::Impl::OnPushes(const TrainJobPushes& pushes) {
  Job* job = FindForCaller(pushes.job);
  if (job == nullptr) return;
  outbox_.Add(CallAnswer{job->OnPushes(pushes)});
}

void Coordinator::Impl::OnStop(const LauncherStop& stop) {
  std::vector<Job*> jobs;
  for (const auto& [name, job] : jobs_) {
    if (stop.of_this_job_alone && name != stop.job) continue;
    if (!job->IsOver() && job->IsOfProgram(stop.job, stop.run_id)) {
      jobs.push_back(job.get());
    }
  }
  if (jobs.empty()) {  // the job of that name, if there is one, refuses the stop
    Job* other = FindForCaller(stop.job);
    if (other == nullptr) return;
    jobs.push_back(other);
  }
  absl::Status status;
  for (Job* job : jobs) status.Update(job->OnStop(stop, now_));
  outbox_.Add(CallAnswer{status});
}

}  // namespace syncline
