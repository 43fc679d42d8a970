// What an engine reports of its jobs, for heartbeats and metrics.
#include <algorithm>
#include <utility>

#include "server/service/engine.h"

namespace syncline {

Engine::LatestReport Engine::AskProgress() {
  absl::MutexLock lock(&report_mutex_);
  const absl::Duration now = clock_.Now();
  LatestReport report{.jobs = report_};
  if (asked_at_) {
    report.silent = now - *asked_at_;
    return report;
  }
  asked_at_ = now;
  loop_->Post([this](Transport&) {
    std::map<uint32_t, JobReport> report;
    for (const auto& [id, job] : jobs_) report[id] = Report(job);
    absl::MutexLock answer(&report_mutex_);
    report_ = std::move(report);
    asked_at_.reset();
  });
  return report;
}

Engine::JobReport Engine::Report(const Job& job) {
  JobReport report = {.phases = job.times.sums(), .backup = job.records.progress()};
  for (const auto& [life, link] : job.workers) {
    job.shard->Crossed(life.first, life.second, link->TakeCrossedBytes());
    report.window_fill = std::max(report.window_fill, link->window_fill());
  }
  report.progress = job.shard->Progress();
  return report;
}

}  // namespace syncline
