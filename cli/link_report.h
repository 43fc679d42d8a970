// What `syncline diagnose` says of a cluster: a report for each link that was looked at, from
// the coordinator's status (comm/rpc/status_json.h), what was tried from this machine
// (cli/link_probe.h), and what steps took of late (server/admin/advisor.h). The
// judging is apart from the looking, so that it can be tested.
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

// docs/diagnose.schema.json says what the fields are.
struct LinkReport {
  Check::Result result = Check::kOk;
  std::string check = {};  // "control", "admin", "heartbeat", "port", ...
  std::string role = {};   // whom it is about: "coordinator", "server", "worker", "job"
  std::optional<uint32_t> number = std::nullopt;  // of a server; the rank of a worker
  std::string job = {};
  std::string from = {};  // for people: "here", "server 0 (host:17)"
  std::string to = {};    // empty: it is of no link
  std::optional<double> seconds = std::nullopt;
  std::optional<double> limit_seconds = std::nullopt;  // beyond which it is a warning
  std::string what = {};
  std::string change = {};  // what to do; empty when kOk or kNone
};

// How long an answer took, or why there was none.
struct LinkProbe {
  std::string address = {};
  absl::StatusOr<absl::Duration> took = absl::ZeroDuration();
};

// What was tried from this machine.
struct LinkProbes {
  LinkProbe control = {};
  std::optional<LinkProbe> admin = std::nullopt;  // absent: nobody said where it is
  bool admin_is_guessed = false;                  // where it is by default
  std::vector<LinkProbe> others = {};             // ports that the caller named
};

// What a step of each running job took of late, or why that is not known, by name.
using FiguresOfJobs = std::map<std::string, absl::StatusOr<JobFigures>>;

// Of the coordinator, its servers, and jobs that are not over.
std::vector<LinkReport> JudgeLinks(const nlohmann::json& status, const LinkProbes& probes,
                                   const FiguresOfJobs& figures, const Timeouts& times);
// Of a coordinator that does not answer: nothing else is known of the cluster.
std::vector<LinkReport> JudgeLinks(const LinkProbes& probes, const Timeouts& times);

Check::Result WorstOf(const std::vector<LinkReport>& reports);

// Lines of at most 80 characters, but for a name that is longer. Many of one kind that
// are as they should be get one line.
std::string ReportsAsText(const std::vector<LinkReport>& reports);
std::string ReportsAsJson(const std::string& coordinator,
                          const std::vector<LinkReport>& reports);

}  // namespace syncline
