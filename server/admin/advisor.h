// What the advisor sees: statuses (comm/rpc/status_json.h), of which differences say what a
// step of late took. Figures come out for the rules (advice.h), and advice as JSON for the
// dashboard.
//
//   Advisor advisor;
//   advisor.Add(status_json, now);                    // now and then
//   for (const Advice& advice : Advise(*advisor.FiguresOf("bert"))) …
//
// Each member has a window of its own (step_window.h): steps may take longer than statuses are
// apart, and one that has made none yet keeps nobody else's figures back.
//
// Bounded: some sums of each member are kept. Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/step_phases.h"
#include "nlohmann/json_fwd.hpp"
#include "server/admin/advice.h"
#include "server/admin/step_window.h"

namespace syncline {

class Advisor {
 public:
  // `now` is monotonic. InternalError when this is no status: nothing changes then.
  absl::Status Add(const std::string& status_json, absl::Duration now);

  // Of the last steps that were seen. NotFound when there is no such job, with the names of
  // those that run; FailedPrecondition when it made no step on any worker, or is in a mode
  // whose workers do not wait for each other.
  absl::StatusOr<JobFigures> FiguresOf(const std::string& job) const;

  // {"seconds":10.2,"jobs":[{"job":1,"name":"bert","why_not":"","without_a_step":[2],
  // "advice":[{"bound":"straggler","share":0.6,"gain":0.6,"sure":"very","what":"…",
  // "change":"…"}]}]}: of jobs that run. `seconds`: as far back as that of any job looks.
  std::string AllJson() const;

 private:
  struct Worker {
    uint32_t incarnation = 0;
    StepWindow<kWorkerPhaseNames.size()> window = {};
  };
  struct Job {
    uint32_t job = 0;
    std::string phase = {};
    JobFigures settings = {};  // without workers and servers
    std::string mode = {};
    std::map<uint32_t, Worker> workers = {};  // by rank
    std::map<uint32_t, StepWindow<kServerPhaseNames.size()>> servers = {};
  };

  void AddMembers(const nlohmann::json& of, Job& job) const;

  std::map<std::string, Job> jobs_;  // by name: the newest of each
  absl::Duration now_ = {};          // of the last status
};

// The advice on one job as lines of text, and as {"step_seconds":0.08,"advice":[...]}.
std::string AdviceAsText(const std::string& job, const JobFigures& figures);
std::string AdviceAsJson(const JobFigures& figures);

}  // namespace syncline
