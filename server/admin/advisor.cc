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

// What servers without a network report (comm/transport/network).
constexpr char kSharedMemory[] = "shared memory of this host";
constexpr absl::Duration kApart = StepWindow<kWorkerPhaseNames.size()>::kApart;

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

Advisor::Advisor(absl::Duration length)
    : length_(std::max(length, WorkerWindow::kLength)) {}

absl::Status Advisor::Add(const std::string& status_json, absl::Duration now) {
  const Json status = Json::parse(status_json, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) return absl::InternalError("a status that is not JSON");
  now_ = now;
  bool is_one_host = true;
  for (const Json& server : status.value("servers", Json::array())) {
    is_one_host = is_one_host && server.value("lanes", "") == kSharedMemory;
  }
  const Json jobs = status.value("jobs", Json::array());
  std::map<std::string, const Json*> newest;  // by name; several jobs may have had it
  for (const Json& of : jobs) newest[of.value("name", "")] = &of;
  std::erase_if(jobs_, [&](const auto& known) { return !newest.contains(known.first); });
  for (const auto& [name, of] : newest) {
    Job& job = jobs_[name];
    if (job.job != of->value("job", 0U)) job = {.job = of->value("job", 0U)};
    job.phase = of->value("phase", "");
    job.mode = of->value("mode", "");
    job.settings = {.push_codec = of->value("push_codec", ""),
                    .publish_codec = of->value("publish_codec", ""),
                    .is_one_host = is_one_host};
    AddEpoch(*of, job);
    job.parameters = of->value("parameters", 0.0);
    AddMembers(*of, job);
  }
  return absl::OkStatus();
}

void Advisor::AddEpoch(const Json& of, Job& job) {
  const uint64_t epoch = of.value("epoch", uint64_t{0});
  if (epoch == job.epoch) return;
  job.began_lately = job.epoch != 0;
  job.epoch = epoch;
  job.began_at.reset();
  for (const Json& event : of.value("events", Json::array())) {  // oldest first
    if (event.value("kind", "") != "epoch") continue;
    job.began_at = event.value("step", uint64_t{0});
  }
  job.workers.clear();
  job.servers.clear();
}

void Advisor::AddMembers(const Json& of, Job& job) const {
  std::map<uint32_t, Worker> before = std::exchange(job.workers, {});
  double ratios = 0;
  bool has_stepped = false;  // a worker, in this epoch
  for (const Json& member : of.value("members", Json::array())) {
    const auto rank = member.value("rank", 0U);
    const auto incarnation = member.value("incarnation", 0U);
    const auto known = before.find(rank);
    Worker worker = {.incarnation = incarnation, .window = WorkerWindow(length_)};
    if (known != before.end() && known->second.incarnation == incarnation) {
      worker = std::move(known->second);
    }
    const Json links = member.value("links", Json::object());
    worker.sent_bytes_per_second = links.value("sent_bytes_per_second", 0.0);
    worker.received_bytes_per_second = links.value("received_bytes_per_second", 0.0);
    ratios += member.value("compression", Json::object()).value("ratio", 1.0);
    if (job.began_at && member.value("step", uint64_t{0}) <= *job.began_at) {
      job.began_lately = true;
    } else {
      has_stepped = true;
      worker.window.Add(
          {.phases = PhasesOf(member.value("phases", Json::object()), kWorkerPhaseNames),
           .bytes = member.value("bytes", uint64_t{0})},
          now_);
    }
    job.workers.insert_or_assign(rank, std::move(worker));
  }
  if (!job.workers.empty()) {
    job.settings.compression =
        std::max(1.0, ratios / static_cast<double>(job.workers.size()));
  }
  if (!has_stepped) return;
  auto servers = std::exchange(job.servers, {});
  for (const Json& server : of.value("server_phases", Json::array())) {
    const auto number = server.value("server", 0U);
    const auto known = servers.find(number);
    ServerWindow window =
        known == servers.end() ? ServerWindow(length_) : std::move(known->second);
    window.Add({.phases = PhasesOf(server, kServerPhaseNames)}, now_);
    job.servers.insert_or_assign(number, std::move(window));
  }
}

absl::StatusOr<JobFigures> Advisor::FiguresOf(const std::string& name) const {
  const auto known = jobs_.find(name);
  if (known == jobs_.end()) {
    std::vector<std::string_view> names;
    for (const auto& [other, job] : jobs_) names.push_back(other);
    return UnknownJob(name, names, JobSet::kKnown);
  }
  const Job& job = known->second;
  const auto fails = [&](const auto&... what) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", Printable(name), "' ", what...));
  };
  if (job.phase != "running") return fails("is ", job.phase, ", not running");
  if (absl::StartsWith(job.mode, "asp")) {
    return fails("has mode asp: its workers do not wait for each other");
  }
  if (job.workers.empty()) return fails("has no workers");
  JobFigures figures = job.settings;
  double bytes = 0;
  absl::Duration looked_at = absl::ZeroDuration(), still_for = absl::InfiniteDuration();
  bool is_new = job.began_lately;  // the epoch, and no step of it was seen yet
  for (const auto& [rank, worker] : job.workers) {
    const auto mean = worker.window.OfAStep(now_);
    if (!worker.window.is_empty()) {
      still_for = std::min(still_for, now_ - worker.window.changed());
    }
    is_new = is_new && !worker.window.has_step();
    if (!mean) {
      figures.without_a_step.push_back(rank);
      continue;
    }
    figures.workers.push_back(
        {.rank = rank,
         .phases = mean->phases,
         .sent_bytes_per_second = worker.sent_bytes_per_second,
         .received_bytes_per_second = worker.received_bytes_per_second});
    bytes += mean->bytes;
    looked_at = std::max(looked_at, mean->length);
  }
  if (figures.workers.empty()) {
    if (is_new) {
      return fails("has epoch ", job.epoch,
                   " for too few steps yet; the first one, in which workers wait for "
                   "those that come or go, does not count; ask again");
    }
    return fails("made no step on any worker in ", absl::FormatDuration(still_for),
                 "; ask for a longer time");
  }
  figures.bytes_per_step = bytes / static_cast<double>(figures.workers.size());
  figures.pushed_bytes_per_step = std::min(
      figures.bytes_per_step, job.parameters * sizeof(float) / figures.compression);
  figures.seconds = absl::ToDoubleSeconds(looked_at);
  for (const auto& [server, window] : job.servers) {
    const auto mean = window.OfAStep(now_);
    if (mean) figures.servers.push_back({.server = server, .phases = mean->phases});
  }
  return figures;
}

std::string Advisor::AllJson() const {
  Json jobs = Json::array();
  double seconds = 0;
  for (const auto& [name, job] : jobs_) {
    if (job.phase != "running") continue;
    absl::StatusOr<JobFigures> figures = FiguresOf(name);
    if (figures.ok()) seconds = std::max(seconds, figures->seconds);
    // A shorter time may show only chance.
    if (figures.ok() && figures->seconds < absl::ToDoubleSeconds(kApart)) {
      figures = absl::FailedPreconditionError("not observed for long enough yet");
    }
    jobs.push_back(
        {{"job", job.job},
         {"name", name},
         {"why_not", std::string(figures.status().message())},
         {"without_a_step", figures.ok() ? Json(figures->without_a_step) : Json::array()},
         {"advice", figures.ok() ? AllAsJson(*figures) : Json::array()}});
  }
  const Json json = {{"seconds", seconds}, {"jobs", std::move(jobs)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string AdviceAsJson(const JobFigures& figures) {
  const Json json = {{"step_seconds", figures.step_seconds()},
                     {"without_a_step", figures.without_a_step},
                     {"advice", AllAsJson(figures)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string AdviceAsText(const std::string& job, const JobFigures& figures) {
  std::string text =
      absl::StrFormat("job %s: a step takes %.3g ms on its slowest worker\n",
                      Printable(job), 1e3 * figures.step_seconds());
  if (!figures.without_a_step.empty()) {
    absl::StrAppend(&text, "  no recent step, and left out: worker ",
                    absl::StrJoin(figures.without_a_step, ", "), "\n");
  }
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
