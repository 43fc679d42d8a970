// Judges the links of a cluster, for `syncline diagnose`. Produces a report for each link
// from the coordinator's status (comm/rpc/status_json.h), from probes of this machine
// (cli/link_probe.h), and from the durations of recent steps (server/admin/advisor.h).
// Measuring happens elsewhere, so that the judgement can be tested.
//
//   const std::vector<LinkReport> reports = JudgeLinks(status, probes, figures);
//   std::cout << ReportsAsText(reports);
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/checks.h"
#include "comm/base/timeouts.h"
#include "nlohmann/json_fwd.hpp"
#include "server/admin/advice.h"

namespace syncline {

// docs/diagnose.schema.json describes the fields.
struct LinkReport {
  Check::Result result = Check::kOk;
  std::string check = {};  // "control", "admin", "heartbeat", "port", ...
  std::string role = {};   // subject: "coordinator", "server", "worker", "job"
  // the server's number, or the worker's rank
  std::optional<uint32_t> number = std::nullopt;
  std::string job = {};
  std::string from = {};  // for people: "here", "server 0 (host:17)"
  std::string to = {};    // empty: the report is not about a link
  std::optional<double> seconds = std::nullopt;
  // a warning if `seconds` exceeds it
  std::optional<double> limit_seconds = std::nullopt;
  std::string what = {};
  std::string change = {};  // advice; empty when kOk or kNone
};

// Time until an answer, or why there was none.
struct LinkProbe {
  std::string address = {};
  absl::StatusOr<absl::Duration> took = absl::ZeroDuration();
};

// Results of the probes of this machine.
struct LinkProbes {
  LinkProbe control = {};
  std::optional<LinkProbe> admin = std::nullopt;  // absent: its address is unknown
  bool admin_is_guessed = false;                  // the address is the default one
  std::vector<LinkProbe> others = {};             // ports that the user named
};

// Step durations of each running job of late, or why they are unknown, by job name.
using FiguresOfJobs = std::map<std::string, absl::StatusOr<JobFigures>>;

// Return reports about the coordinator, its servers, and jobs that are not over.
std::vector<LinkReport> JudgeLinks(const nlohmann::json& status, const LinkProbes& probes,
                                   const FiguresOfJobs& figures, const Timeouts& times);
// Return reports when the coordinator does not answer: all else is unknown.
std::vector<LinkReport> JudgeLinks(const LinkProbes& probes, const Timeouts& times);

Check::Result WorstOf(const std::vector<LinkReport>& reports);

// Returns lines of at most 80 characters, unless a name is longer. Many reports of one
// kind with result kOk share one line.
std::string ReportsAsText(const std::vector<LinkReport>& reports);
std::string ReportsAsJson(const std::string& coordinator,
                          const std::vector<LinkReport>& reports);

}  // namespace syncline
