#include "server/admin/advisor.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "comm/base/printable.h"
#include "comm/base/unknown_job.h"
#include "comm/rpc/status_phases.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

// As long as a difference is one of late, and not shorter than some heartbeats.
constexpr absl::Duration kWindow = absl::Seconds(10);
// As servers say it that have no network (comm/transport/network).
constexpr char kSharedMemory[] = "shared memory of this host";
constexpr absl::Duration kApart = absl::Seconds(2);

Json AsJson(const Advice& advice) {
  return {{"bound", BoundName(advice.bound)},
          {"share", advice.share},
          {"gain", advice.gain},
          {"sure", SureName(advice.sure)},
          {"what", advice.what},
          {"change", advice.change}};
}

Json AllAsJson(const JobFigures& figures) {
  Json all = Json::array();
  for (const Advice& advice : Advise(figures)) all.push_back(AsJson(advice));
  return all;
}

}  // namespace

absl::Status Advisor::Add(const std::string& status_json, absl::Duration now) {
  const Json status = Json::parse(status_json, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) return absl::InternalError("a status that is no JSON");
  Sample sample{.time = now};
  bool is_one_host = true;
  for (const Json& server : status.value("servers", Json::array())) {
    is_one_host = is_one_host && server.value("lanes", "") == kSharedMemory;
  }
  for (const Json& of : status.value("jobs", Json::array())) {
    Job job{.job = of.value("job", 0U),
            .phase = of.value("phase", ""),
            .settings = {.push_codec = of.value("push_codec", ""),
                         .publish_codec = of.value("publish_codec", ""),
                         .is_one_host = is_one_host},
            .mode = of.value("mode", "")};
    double ratios = 0;
    for (const Json& member : of.value("members", Json::array())) {
      job.workers[member.value("rank", 0U)] = {
          .incarnation = member.value("incarnation", 0U),
          .phases = PhasesOf(member.value("phases", Json::object()), kWorkerPhaseNames),
          .bytes = member.value("bytes", uint64_t{0})};
      ratios += member.value("compression", Json::object()).value("ratio", 1.0);
    }
    if (!job.workers.empty()) {
      job.settings.compression =
          std::max(1.0, ratios / static_cast<double>(job.workers.size()));
    }
    for (const Json& server : of.value("server_phases", Json::array())) {
      job.servers[server.value("server", 0U)] = PhasesOf(server, kServerPhaseNames);
    }
    sample.jobs[of.value("name", "")] = std::move(job);
  }
  // Several may ask, at any times.
  const size_t kept = samples_.size();
  if (kept >= 2 && now - samples_[kept - 2].time < kApart) samples_.pop_back();
  samples_.push_back(std::move(sample));
  while (samples_.size() > 2 && now - samples_[1].time >= kWindow) samples_.pop_front();
  return absl::OkStatus();
}

absl::StatusOr<JobFigures> Advisor::FiguresOf(const std::string& name) const {
  if (samples_.empty()) return absl::FailedPreconditionError("no status was seen");
  const Sample& then = samples_.front();
  const Sample& latest = samples_.back();
  const auto last = latest.jobs.find(name);
  if (last == latest.jobs.end()) {
    std::vector<std::string_view> names;
    for (const auto& [known, job] : latest.jobs) names.push_back(known);
    return UnknownJob(name, names, JobSet::kKnown);
  }
  const Job& now = last->second;
  const auto fails = [&](const auto&... what) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", Printable(name), "' ", what...));
  };
  if (now.phase != "running") return fails("is ", now.phase, ", not running");
  if (absl::StartsWith(now.mode, "asp")) {
    return fails("has mode asp: no worker of it waits for others");
  }
  const auto first = then.jobs.find(name);
  const bool is_same = first != then.jobs.end() && first->second.job == now.job;
  JobFigures figures = now.settings;
  double bytes = 0;
  for (const auto& [rank, worker] : now.workers) {
    const auto before = is_same ? first->second.workers.find(rank) : now.workers.end();
    const bool is_known = is_same && before != first->second.workers.end() &&
                          before->second.incarnation == worker.incarnation;
    const auto mean =
        is_known ? OfAStep(before->second.phases, worker.phases) : std::nullopt;
    if (!mean) {
      return fails("made no step on worker ", rank, " in ",
                   absl::FormatDuration(latest.time - then.time),
                   "; ask for a longer time");
    }
    figures.workers.push_back({.rank = rank, .phases = *mean});
    if (worker.bytes >= before->second.bytes) {
      bytes += static_cast<double>(worker.bytes - before->second.bytes) /
               static_cast<double>(worker.phases.steps - before->second.phases.steps);
    }
  }
  if (figures.workers.empty()) return fails("has no workers");
  figures.bytes_per_step = bytes / static_cast<double>(figures.workers.size());
  for (const auto& [server, phases] : now.servers) {
    const auto before = first->second.servers.find(server);
    if (before == first->second.servers.end()) continue;
    const auto mean = OfAStep(before->second, phases);
    if (mean) figures.servers.push_back({.server = server, .phases = *mean});
  }
  return figures;
}

std::string Advisor::AllJson() const {
  nlohmann::json jobs = nlohmann::json::array();
  const absl::Duration seen = samples_.empty()
                                  ? absl::ZeroDuration()
                                  : samples_.back().time - samples_.front().time;
  const std::map<std::string, Job> none;
  for (const auto& [name, job] : samples_.empty() ? none : samples_.back().jobs) {
    if (job.phase != "running") continue;
    // What a shorter time shows may be chance.
    const absl::StatusOr<JobFigures> figures =
        seen >= kApart ? FiguresOf(name)
                       : absl::FailedPreconditionError("looked at for a moment only");
    nlohmann::json all = nlohmann::json::array();
    if (figures.ok()) all = AllAsJson(*figures);
    jobs.push_back({{"job", job.job},
                    {"name", name},
                    {"why_not", std::string(figures.status().message())},
                    {"advice", std::move(all)}});
  }
  const nlohmann::json json = {{"seconds", absl::ToDoubleSeconds(seen)},
                               {"jobs", std::move(jobs)}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string AdviceAsJson(const JobFigures& figures) {
  const Json json = {{"step_seconds", figures.step_seconds()},
                     {"advice", AllAsJson(figures)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string AdviceAsText(const std::string& job, const JobFigures& figures) {
  std::string text =
      absl::StrFormat("job %s: a step takes %.3g ms on its slowest worker\n",
                      Printable(job), 1e3 * figures.step_seconds());
  const std::vector<Advice> all = Advise(figures);
  if (all.empty()) {
    return text + "  nothing takes 15 % of a step or more besides computing\n";
  }
  for (const Advice& advice : all) {
    absl::StrAppendFormat(
        &text,
        "%3.0f %%  %-11s  %s\n"
        "                    change: %s\n"
        "                    saves %.0f %% of a step at most; %s sure\n",
        100 * advice.share, BoundName(advice.bound), advice.what, advice.change,
        100 * advice.gain, SureName(advice.sure));
  }
  return text;
}

}  // namespace syncline
