#include "cli/link_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/base/printable.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

// A server is slow if its engines work longer per step than any other server's by this
// factor, and the difference is at least this fraction of a step.
constexpr double kMuchLonger = 2;
constexpr double kFelt = 0.15;
// Beginning of the reason of a running job that one member holds up
// (server/coordinator/stall.h).
constexpr char kHeldUp[] = "held up: ";
constexpr char kSilentServer[] =
    "check whether its process is stopped or swaps (ps, dmesg), then the network from "
    "its host to the coordinator";
constexpr char kSilentWorker[] =
    "check whether its process stands still (a debugger, a full disk, swapping), then "
    "the network from its host to the coordinator";

std::string InWords(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.1f s", seconds);
  return absl::StrFormat("%.*f ms", seconds < 0.01 ? 2 : 0, 1e3 * seconds);
}

std::string Named(const char* what, uint32_t number, const Json& of) {
  const std::string name = of.value("name", "");
  return absl::StrCat(what, " ", number,
                      name.empty() ? "" : absl::StrCat(" (", Printable(name), ")"));
}

bool IsOver(const Json& job) {
  const std::string phase = job.value("phase", "");
  return phase == "over" || phase == "failed";
}

// Judges how long an answer took. It should not take longer than a heartbeat interval,
// because heartbeats travel the same way.
void Judge(const LinkProbe& probe, const Timeouts& times, const char* change,
           LinkReport& report) {
  const double limit = absl::ToDoubleSeconds(times.heartbeat_interval);
  report.limit_seconds = limit;
  if (!probe.took.ok()) {
    report.result = Check::kFail;
    report.what = absl::StrCat("not reached: ", probe.took.status().message());
    report.change = change;
    return;
  }
  report.seconds = absl::ToDoubleSeconds(*probe.took);
  const bool is_slow = *report.seconds > limit;
  report.what =
      absl::StrCat("answers in ", InWords(*report.seconds),
                   is_slow ? ", longer than the interval between heartbeats" : "");
  if (!is_slow) return;
  report.result = Check::kWarn;
  report.change = change;
}

LinkReport JudgeControl(const LinkProbe& control, const Timeouts& times) {
  LinkReport report{.check = "control",
                    .role = "coordinator",
                    .from = "here",
                    .to = absl::StrCat("coordinator ", control.address)};
  Judge(control, times, "check the load of its host, and the network on the way", report);
  return report;
}

std::optional<LinkReport> JudgeAdmin(const LinkProbes& probes, const Timeouts& times) {
  if (!probes.admin) return std::nullopt;
  LinkReport report{.check = "admin",
                    .role = "coordinator",
                    .from = "here",
                    .to = absl::StrCat("admin port ", probes.admin->address)};
  if (probes.admin_is_guessed && !probes.admin->took.ok()) {
    report.result = Check::kNone;
    report.what = "nothing answers at its default address; give its address with --admin";
    return report;
  }
  Judge(*probes.admin, times,
        "metrics, probes and the dashboard come from there: check firewalls and port "
        "forwards on the way, and serve --admin-listen",
        report);
  return report;
}

LinkReport JudgePort(const LinkProbe& port, const Timeouts& times) {
  LinkReport report{.check = "port", .role = "port", .from = "here", .to = port.address};
  Judge(port, times,
        "workers on this machine could not reach it either: check routes and firewalls "
        "on the way, and serve --data-plane-address and --data-plane-ports",
        report);
  return report;
}

// Judges how long a member has sent the coordinator nothing. A late member connects
// again; beyond tolerated_cut the coordinator will soon drop it.
void JudgeSilence(double age, const Timeouts& times, LinkReport& report) {
  report.seconds = age;
  report.limit_seconds = absl::ToDoubleSeconds(times.redial_after);
  report.what = absl::StrCat("heartbeat ", InWords(age), " ago");
  if (age <= *report.limit_seconds) return;
  const bool is_silent = age > absl::ToDoubleSeconds(times.tolerated_cut);
  report.result = is_silent ? Check::kFail : Check::kWarn;
  report.what = absl::StrCat(is_silent ? "silent" : "late", ": no heartbeat for ",
                             InWords(age), "; the coordinator drops it after ",
                             InWords(absl::ToDoubleSeconds(times.lease)));
}

LinkReport JudgeHeartbeat(const Json& server, const Timeouts& times) {
  const auto number = server.value("server", 0U);
  LinkReport report{.check = "heartbeat",
                    .role = "server",
                    .number = number,
                    .from = Named("server", number, server),
                    .to = "coordinator"};
  JudgeSilence(server.value("heartbeat_age_seconds", 0.0), times, report);
  if (server.contains("lost_seconds")) {
    report.result = Check::kFail;
    report.what = absl::StrCat("lost: its connection broke ",
                               InWords(server.value("lost_seconds", 0.0)), " ago");
    report.change =
        "check whether its process still runs; if not, its log says why it ended";
  } else if (report.result != Check::kOk) {
    report.change = kSilentServer;
  }
  return report;
}

// Reports how long each worker needs for a step by itself, and which one keeps the others
// waiting.
void JudgeOwnTimes(const JobFigures& figures, std::vector<LinkReport>& workers) {
  const std::optional<Advice> straggler = AdviseOnStraggler(figures);
  const auto own = [](const WorkerFigures& worker) {
    return worker.total() - worker.phases[WorkerPhase::kOthers] -
           worker.phases[WorkerPhase::kPublish];
  };
  const auto slowest = std::ranges::max_element(figures.workers, {}, own);
  for (const WorkerFigures& worker : figures.workers) {
    const auto beat = std::ranges::find(workers, worker.rank, &LinkReport::number);
    LinkReport report{
        .check = "own_time",
        .role = "worker",
        .number = worker.rank,
        .job = beat == workers.end() ? "" : beat->job,
        .from = beat == workers.end() ? absl::StrCat("worker ", worker.rank) : beat->from,
        .seconds = own(worker)};
    report.what = absl::StrCat("a step takes it ", InWords(own(worker)), " by itself");
    if (straggler && worker.rank == slowest->rank) {
      report.result = Check::kWarn;
      report.what = straggler->what;
      report.change = straggler->change;
    }
    workers.push_back(std::move(report));
  }
}

// Returns a report on the server whose engines work much longer per step than those of
// all other servers, if there is one.
std::optional<LinkReport> JudgeServerTimes(const std::string& job,
                                           const JobFigures& figures) {
  if (figures.servers.size() < 2) return std::nullopt;
  std::vector<ServerFigures> servers = figures.servers;
  const auto work = [](const ServerFigures& server) {
    return server.phases[ServerPhase::kStep];
  };
  std::ranges::sort(servers, {}, work);
  const double longest = work(servers.back());
  const double next = work(servers[servers.size() - 2]);
  const bool is_felt = longest - next > kFelt * figures.step_seconds();
  if (longest <= kMuchLonger * next || !is_felt) return std::nullopt;
  return LinkReport{
      .result = Check::kWarn,
      .check = "server_time",
      .role = "server",
      .number = servers.back().server,
      .job = job,
      .from = absl::StrCat("server ", servers.back().server, " for job ", job),
      .seconds = longest,
      .limit_seconds = kMuchLonger * next,
      .what = absl::StrCat("works ", InWords(longest),
                           " for a step, and no other more than ", InWords(next)),
      .change =
          "check its host (other programs, throttling), or give it cores of its own"};
}

// Reports whether the job makes progress, and if not, why.
LinkReport JudgeProgress(const Json& job) {
  const std::string phase = job.value("phase", "");
  const std::string reason = Printable(job.value("reason", ""), 1000);
  const size_t members = job.value("members", Json::array()).size();
  const auto expected = job.value("expected_workers", size_t{0});
  LinkReport report{.check = "progress",
                    .role = "job",
                    .job = Printable(job.value("name", "")),
                    .from = absl::StrCat("job ", Printable(job.value("name", "")))};
  report.what = absl::StrCat(phase, ", step ", job.value("step", uint64_t{0}), ", ",
                             members, " of ", expected, " workers");
  if (phase == "waiting") {
    report.result = Check::kFail;
    report.what = absl::StrCat("waits and does not train: ", reason);
    report.change =
        "start the missing members, unless syncline run or Kubernetes does; syncline "
        "events shows what happened before";
  } else if (phase == "running" && absl::StartsWith(reason, kHeldUp)) {
    report.result = Check::kFail;
    report.what = absl::StrCat("stands still at step ", job.value("step", uint64_t{0}),
                               "; ", reason);
    report.change =
        "check that worker and its connection to that server; if it makes no progress, "
        "it is dropped";
  } else if (members == 0 && expected > 0) {
    report.result = Check::kFail;
    report.what = absl::StrCat("stands still at step ", job.value("step", uint64_t{0}),
                               ": no worker is left");
    report.change = "start its workers again; the job ends if none joins for a while";
  } else if (members < expected) {
    report.result = Check::kWarn;
    report.change =
        "the others go on; a worker that is started again with its rank joins";
  }
  return report;
}

void JudgeJob(const Json& job, const Timeouts& times, const FiguresOfJobs& all,
              std::vector<LinkReport>& reports) {
  const std::string name = job.value("name", "");
  reports.push_back(JudgeProgress(job));
  const std::string shown = reports.back().job;
  std::vector<LinkReport> workers;
  for (const Json& member : job.value("members", Json::array())) {
    const auto rank = member.value("rank", 0U);
    LinkReport report{
        .check = "heartbeat",
        .role = "worker",
        .number = rank,
        .job = shown,
        .from = absl::StrCat(Named("worker", rank, member), " of job ", shown),
        .to = "coordinator"};
    JudgeSilence(member.value("heartbeat_age_seconds", 0.0), times, report);
    if (report.result != Check::kOk) report.change = kSilentWorker;
    workers.push_back(std::move(report));
  }
  const auto figures = all.find(name);
  std::optional<LinkReport> slow_server;
  if (figures != all.end() && figures->second.ok()) {
    JudgeOwnTimes(*figures->second, workers);
    slow_server = JudgeServerTimes(shown, *figures->second);
  } else if (figures != all.end()) {
    workers.push_back({.result = Check::kNone,
                       .check = "own_time",
                       .role = "job",
                       .job = shown,
                       .from = absl::StrCat("steps of job ", shown),
                       .what = absl::StrCat("cannot tell which member is slow: ",
                                            figures->second.status().message())});
  }
  for (LinkReport& report : workers) reports.push_back(std::move(report));
  if (slow_server) reports.push_back(*std::move(slow_server));
}

}  // namespace

std::vector<LinkReport> JudgeLinks(const nlohmann::json& status, const LinkProbes& probes,
                                   const FiguresOfJobs& figures, const Timeouts& times) {
  std::vector<LinkReport> reports = JudgeLinks(probes, times);
  for (const Json& server : status.value("servers", Json::array())) {
    reports.push_back(JudgeHeartbeat(server, times));
  }
  for (const Json& job : status.value("jobs", Json::array())) {
    if (!IsOver(job)) JudgeJob(job, times, figures, reports);
  }
  return reports;
}

std::vector<LinkReport> JudgeLinks(const LinkProbes& probes, const Timeouts& times) {
  std::vector<LinkReport> reports = {JudgeControl(probes.control, times)};
  // The failure's own message already says what to do.
  if (!probes.control.took.ok()) reports.front().change.clear();
  if (auto admin = JudgeAdmin(probes, times)) reports.push_back(*std::move(admin));
  for (const LinkProbe& port : probes.others) reports.push_back(JudgePort(port, times));
  return reports;
}

Check::Result WorstOf(const std::vector<LinkReport>& reports) {
  Check::Result worst = Check::kOk;
  for (const LinkReport& report : reports) worst = std::max(worst, report.result);
  return worst;
}

}  // namespace syncline
