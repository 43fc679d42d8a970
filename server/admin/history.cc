#include "server/admin/history.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLatestPoints = 5;

double Seconds(absl::Time time) {
  return static_cast<double>(absl::ToUnixMillis(time)) / 1000;
}

std::string Dump(const Json& json) {
  // Names come from members: what is no UTF-8 must not end the process.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsOver(const JobView& job) { return job.phase == "over" || job.phase == "failed"; }

std::string Because(const std::string& reason) {
  return reason.empty() ? "" : absl::StrCat(": ", reason);
}

// Whoever came or went, but for those of whom the reason of the new epoch tells already.
std::vector<std::string> MemberChanges(const JobView& view, const JobView& last,
                                       const std::string& reason) {
  std::vector<std::string> lines;
  const auto say = [&](uint32_t rank, const std::string& what) {
    const std::string who = absl::StrCat("worker ", rank, " ");
    if (reason.find(who) == std::string::npos) lines.push_back(who + what);
  };
  std::map<uint32_t, uint32_t> before;  // incarnations by rank
  for (const MemberView& member : last.members) before[member.rank] = member.incarnation;
  for (const MemberView& member : view.members) {
    const auto known = before.find(member.rank);
    if (known == before.end()) {
      say(member.rank, absl::StrCat("(", member.name, ") joins"));
    } else {
      if (known->second != member.incarnation) {
        say(member.rank, absl::StrCat("(", member.name, ") is back"));
      }
      before.erase(known);
    }
  }
  for (const auto& [rank, incarnation] : before) say(rank, "is gone");
  return lines;
}

// Each epoch passes through "changing", which says nothing that the epoch does not.
std::string PhaseChange(const JobView& view, const JobView& last) {
  const bool through_changing = view.phase == "changing" || last.phase == "changing";
  if (view.phase == last.phase || (through_changing && !IsOver(view))) return "";
  const bool running = view.phase == "running";  // the epoch has given the reason
  return absl::StrCat("the job is ", view.phase, running ? "" : Because(view.reason));
}

}  // namespace

void History::Add(const CoordinatorView& view, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ++samples_;
  AddServers(view, now);
  for (const JobView& job : view.jobs) {
    const auto known = jobs_.find(job.job);
    if (known != jobs_.end() && !IsOver(job)) known->second.seen = samples_;
  }
  for (const JobView& job : view.jobs) AddJob(job, now);
}

void History::AddServers(const CoordinatorView& view, absl::Time now) {
  std::map<uint32_t, ServerView> before = std::move(servers_);
  servers_.clear();
  for (const ServerView& server : view.servers) {
    const auto known = before.find(server.server);
    // Of another life of the coordinator: it attaches when it is back.
    if (known == before.end() && server.lost_for) continue;
    if (known == before.end() || known->second.incarnation != server.incarnation) {
      Say({.time = now,
           .job = {},
           .what =
               absl::StrCat("server ", server.server, " (", server.name, ") attaches")});
    }
    before.erase(server.server);
    servers_[server.server] = server;
  }
  for (const auto& [number, server] : before) {
    Say({.time = now,
         .job = {},
         .what = absl::StrCat("server ", number, " (", server.name, ") is gone")});
  }
}

void History::AddJob(const JobView& view, absl::Time now) {
  auto known = jobs_.find(view.job);
  if (known == jobs_.end()) {
    if (IsOver(view) || (jobs_.size() >= limits_.jobs && !ForgetAJob())) return;
    known = jobs_.emplace(view.job, Job{.name = view.name, .seen = samples_}).first;
  }
  Job& job = known->second;
  job.step = std::max(job.step, view.step);
  SayChanges(view, job, now);
  CountBytes(view, job);
  if (!IsOver(view) || !IsOver(job.last)) {  // also where it ended
    AddPoint({.time = now, .step = job.step, .loss = view.loss, .bytes = job.bytes}, job);
  }
  job.last = view;
}

// A member's count begins anew with each of its lives, and goes with it; the job's only
// grows.
void History::CountBytes(const JobView& view, Job& job) const {
  std::map<uint32_t, uint64_t> now;
  for (const MemberView& member : view.members) {
    const auto known = job.bytes_of_members.find(member.rank);
    const uint64_t before = known == job.bytes_of_members.end() ? 0 : known->second;
    job.bytes += member.bytes >= before ? member.bytes - before : member.bytes;
    now[member.rank] = member.bytes;
  }
  job.bytes_of_members = std::move(now);
}

void History::AddPoint(const Point& point, Job& job) const {
  job.fine.push_back(point);
  ++job.added;
  if (job.fine.size() <= limits_.fine_points) return;
  // Points leave the fine ones in the order of their numbers: every `coarse`th one stays.
  const uint64_t number = job.added - job.fine.size();
  if (number % limits_.coarse == 0) job.coarse.push_back(job.fine.front());
  job.fine.pop_front();
  if (job.coarse.size() > limits_.coarse_points) job.coarse.pop_front();
}

void History::SayChanges(const JobView& view, const Job& job, absl::Time now) {
  const bool has_new_epoch = view.epoch != job.last.epoch && view.epoch != 0;
  const std::string reason = has_new_epoch ? view.reason : "";
  std::vector<std::string> lines;
  // With the job its members go, which is no news of each of them.
  if (!IsOver(view)) lines = MemberChanges(view, job.last, reason);
  if (has_new_epoch) lines.push_back(absl::StrCat("epoch ", view.epoch, Because(reason)));
  const CheckpointView& saved = view.checkpoint;
  if (saved.written > job.last.checkpoint.written) {
    lines.push_back(absl::StrCat("checkpoint ", saved.latest, " is complete"));
  }
  if (saved.failed > job.last.checkpoint.failed) {
    lines.push_back(absl::StrCat("a checkpoint failed: ", saved.error));
  }
  const std::string phase = PhaseChange(view, job.last);
  if (!phase.empty()) lines.push_back(phase);
  for (std::string& line : lines) {
    Say({.time = now, .job = view.name, .step = job.step, .what = std::move(line)});
  }
}

void History::Say(Event event) {
  events_.push_back(std::move(event));
  if (events_.size() > limits_.events) events_.pop_front();
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
                        {"bytes", point.bytes}});
    };
    if (span == Span::kAll) {
      for (const Point& point : job.coarse) add(point);
    }
    const size_t skipped = span == Span::kAll || job.fine.size() < kLatestPoints
                               ? 0
                               : job.fine.size() - kLatestPoints;
    for (size_t i = skipped; i < job.fine.size(); ++i) add(job.fine[i]);
    jobs.push_back({{"job", number}, {"name", job.name}, {"points", std::move(points)}});
  }
  return Dump({{"jobs", std::move(jobs)}});
}

std::string History::EventsJson() const {
  absl::MutexLock lock(&mutex_);
  Json events = Json::array();
  for (const Event& event : events_) {
    events.push_back({{"time", Seconds(event.time)},
                      {"job", event.job},
                      {"step", event.step},
                      {"what", event.what}});
  }
  return Dump({{"events", std::move(events)}});
}

}  // namespace syncline
