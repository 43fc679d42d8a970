#include "cli/diagnose.h"

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/flags.h"
#include "cli/job_choice.h"
#include "cli/link_probe.h"
#include "cli/link_report.h"
#include "cli/local_runs.h"
#include "comm/base/env.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/base/timeouts.h"
#include "comm/rpc/address.h"
#include "nlohmann/json.hpp"
#include "server/admin/advisor.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

struct DiagnoseFlags {
  std::string job;
  std::string coordinator;
  std::string admin;
  std::vector<std::string> reach;
  std::string watch = "3s";
  std::string failure_timeout = "10s";
  OutputFormat format = OutputFormat::kTable;
  TlsOptions tls;
};

std::vector<std::string> RunningJobs(const Json& status) {
  std::vector<std::string> names;
  for (const Json& job : status.value("jobs", Json::array())) {
    if (job.value("phase", "") == "running") names.push_back(job.value("name", ""));
  }
  return names;
}

struct DiagnosePlan {
  absl::Duration watch;
  Timeouts times;
};

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

absl::StatusOr<DiagnosePlan> PlanOf(const DiagnoseFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration watch,
                            ParseDurationFlag("--watch", flags.watch));
  if (watch < absl::Seconds(1) || watch > absl::Hours(1)) {
    return Usage(absl::StrCat("--watch is ", flags.watch, ", but must be in [1s, 1h]"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      const absl::Duration failure_timeout,
      ParseDurationFlag("--failure-timeout", flags.failure_timeout));
  if (const absl::Status valid = Timeouts::Validate(failure_timeout); !valid.ok()) {
    return WithFailure(valid, Failure::kUsage);
  }
  for (const std::string& address : flags.reach) {
    const auto parsed = ParseHostPort(address);
    if (!parsed.ok() || parsed->host.empty() || parsed->port == 0) {
      return Usage(absl::StrCat("--reach is '", Printable(address),
                                "', but must be HOST:PORT, such as 10.0.0.2:7100"));
    }
  }
  return DiagnosePlan{watch, Timeouts::Derive(failure_timeout)};
}

LinkProbes ProbeLinks(const DiagnoseFlags& flags) {
  LinkProbes probes{.control = {flags.coordinator}};
  const std::string guess = DefaultAdmin(flags.coordinator);
  probes.admin_is_guessed = flags.admin.empty();
  const std::string admin = flags.admin.empty() ? guess : flags.admin;
  if (!admin.empty()) probes.admin = ProbeAdmin(admin);
  probes.others = ProbePorts(flags.reach);
  return probes;
}

struct SeenCluster {
  Json status;  // at the end
  FiguresOfJobs figures;
  absl::Duration fastest_call;
};

// Watches the cluster for `watch`. Returns its status at the end, and how long steps
// took.
absl::StatusOr<SeenCluster> LookAtCluster(const DiagnoseFlags& flags,
                                          absl::Duration watch) {
  SYNCLINE_ASSIGN_OR_RETURN(StatusCaller caller,
                            StatusCaller::Connect(flags.coordinator, flags.tls));
  const SteadyClock clock;
  Advisor advisor;
  SYNCLINE_ASSIGN_OR_RETURN(std::string text, caller.Ask());
  SYNCLINE_ASSIGN_OR_RETURN(text, StatusOfJob(text, flags.job));
  Json status = Json::parse(text);
  SYNCLINE_RETURN_IF_ERROR(advisor.Add(text, clock.Now()));
  if (!RunningJobs(status).empty()) {
    absl::SleepFor(watch);
    SYNCLINE_ASSIGN_OR_RETURN(text, caller.Ask());
    SYNCLINE_ASSIGN_OR_RETURN(text, StatusOfJob(text, flags.job));
    status = Json::parse(text);
    SYNCLINE_RETURN_IF_ERROR(advisor.Add(text, clock.Now()));
  }
  SeenCluster seen{std::move(status), {}, caller.fastest()};
  for (const std::string& job : RunningJobs(seen.status)) {
    seen.figures.emplace(job, advisor.FiguresOf(job));
  }
  return seen;
}

absl::StatusOr<int> Diagnose(const DiagnoseFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const DiagnosePlan plan, PlanOf(flags));
  const absl::StatusOr<SeenCluster> seen = LookAtCluster(flags, plan.watch);
  const bool is_unreachable =
      absl::IsDeadlineExceeded(seen.status()) || absl::IsUnavailable(seen.status());
  if (!seen.ok() && !is_unreachable) return seen.status();
  LinkProbes probes = ProbeLinks(flags);
  // The answer has the requested format even if nothing is reachable.
  if (is_unreachable) {
    probes.control.took = seen.status();
  } else {
    probes.control.took = seen->fastest_call;
  }
  const std::vector<LinkReport> reports =
      is_unreachable ? JudgeLinks(probes, plan.times)
                     : JudgeLinks(seen->status, probes, seen->figures, plan.times);
  if (flags.format == OutputFormat::kTable) {
    std::cout << ReportsAsText(reports) << std::flush;
  } else {
    std::cout << ReportsAsJson(flags.coordinator, reports) << std::endl;
  }
  if (is_unreachable) return kExitUnreachable;
  return WorstOf(reports) == Check::kFail ? kExitFatal : kExitDone;
}

}  // namespace

void AddDiagnose(CLI::App& app, Command* selected) {
  auto flags = std::make_shared<DiagnoseFlags>();
  CLI::App* diagnose = app.add_subcommand(
      "diagnose",
      "Show which members of a cluster are slow or unreachable, and over which link");
  diagnose->add_option("job", flags->job, kChosenJob);
  AddCoordinatorFlag(*diagnose, &flags->coordinator);
  diagnose->add_option("--admin", flags->admin,
                       "HOST:PORT of its admin port (default: port 7071 beside 7070)");
  diagnose
      ->add_option(
          "--reach", flags->reach,
          "HOST:PORT to connect to from here, too, such as a server's data plane; "
          "may be given several times")
      ->allow_extra_args(false);
  diagnose
      ->add_option("--failure-timeout", flags->failure_timeout,
                   "Failure timeout of the cluster, from which all limits follow")
      ->capture_default_str();
  diagnose->add_option("--watch", flags->watch, "How long to observe the steps of jobs")
      ->capture_default_str();
  AddOutputFlag(*diagnose, &flags->format);
  AddTlsFlags(*diagnose, &flags->tls);
  diagnose->callback([=] { *selected = [flags] { return Asking(*flags, Diagnose); }; });
}

}  // namespace syncline
