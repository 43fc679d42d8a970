#include "server/admin/history.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLatestPoints = 5;

double Seconds(absl::Time time) {
  return static_cast<double>(absl::ToUnixMillis(time)) / 1000;
}

std::string Dump(const Json& json) {
  // Names come from members. Invalid UTF-8 in them must not end the process.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json WorkersOf(const OwnTimes& times) {
  Json workers = Json::array();
  for (const auto& [rank, worker] : times.workers()) {
    workers.push_back({{"rank", rank},
                       {"incarnation", worker.incarnation},
                       {"steps", worker.steps},
                       {"seconds", worker.seconds},
                       {"points", worker.points}});
  }
  return workers;
}

}  // namespace

void History::Add(const CoordinatorView& view, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ++samples_;
  for (const JobView& job : view.jobs) {
    const auto known = jobs_.find(job.job);
    if (known != jobs_.end() && !job.IsOver()) known->second.seen = samples_;
  }
  for (const JobView& job : view.jobs) AddJob(job, now);
}

void History::AddJob(const JobView& view, absl::Time now) {
  auto known = jobs_.find(view.job);
  if (known == jobs_.end()) {
    if (view.IsOver() || (jobs_.size() >= limits_.jobs && !ForgetAJob())) return;
    known = jobs_.emplace(view.job, Job{.name = view.name, .seen = samples_}).first;
  }
  Job& job = known->second;
  job.step = std::max(job.step, view.step);
  job.bytes.Add(view.members, &MemberView::bytes);
  job.samples.Add(view.members, &MemberView::samples);
  job.own_times.Add(view.members);
  if (!view.IsOver() || !job.is_over) {  // also the point at which it ended
    AddPoint({.time = now,
              .step = job.step,
              .loss = view.loss,
              .bytes = job.bytes.sum(),
              .samples = job.samples.sum()},
             job);
  }
  job.is_over = view.IsOver();
}

void History::AddPoint(const Point& point, Job& job) const {
  job.fine.push_back(point);
  ++job.added;
  if (job.fine.size() <= limits_.fine_points) return;
  // Points leave `fine` in the order of their numbers, and every `coarse`th one is kept.
  const uint64_t number = job.added - job.fine.size();
  if (number % limits_.coarse == 0) job.coarse.push_back(job.fine.front());
  job.fine.pop_front();
  if (job.coarse.size() > limits_.coarse_points) job.coarse.pop_front();
}

bool History::ForgetAJob() {
  const auto oldest = std::min_element(
      jobs_.begin(), jobs_.end(),
      [](const auto& a, const auto& b) { return a.second.seen < b.second.seen; });
  if (oldest->second.seen == samples_) return false;
  jobs_.erase(oldest);
  return true;
}

std::string History::FiguresJson(Span span) const {
  absl::MutexLock lock(&mutex_);
  Json jobs = Json::array();
  for (const auto& [number, job] : jobs_) {
    Json points = Json::array();
    const auto add = [&](const Point& point) {
      const bool has_loss = point.loss.has_value() && std::isfinite(*point.loss);
      points.push_back({{"time", Seconds(point.time)},
                        {"step", point.step},
                        {"loss", has_loss ? Json(*point.loss) : Json()},
                        {"bytes", point.bytes},
                        {"samples", point.samples}});
    };
    if (span == Span::kAll) {
      for (const Point& point : job.coarse) add(point);
    }
    const size_t skipped = span == Span::kAll || job.fine.size() < kLatestPoints
                               ? 0
                               : job.fine.size() - kLatestPoints;
    for (size_t i = skipped; i < job.fine.size(); ++i) add(job.fine[i]);
    jobs.push_back({{"job", number}, {"name", job.name}, {"points", std::move(points)}});
    if (span == Span::kAll) jobs.back()["workers"] = WorkersOf(job.own_times);
  }
  return Dump({{"jobs", std::move(jobs)}});
}

}  // namespace syncline
