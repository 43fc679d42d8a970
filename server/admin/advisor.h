// What the advisor sees: statuses (comm/rpc/status_json.h), of which differences say what a
// step of late took. Figures come out for the rules (advice.h), and advice as JSON for the
// dashboard.
//
//   Advisor advisor;
//   advisor.Add(status_json, now);                    // now and then
//   for (const Advice& advice : Advise(*advisor.FiguresOf("bert"))) …
//
// Bounded: statuses of the last ten seconds are kept, or two. Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/admin/advice.h"

namespace syncline {

class Advisor {
 public:
  // `now` is monotonic. InternalError when this is no status: nothing changes then.
  absl::Status Add(const std::string& status_json, absl::Duration now);

  // Of the steps between the first and the last of these statuses. NotFound when there is no such job, with the names of
  // those that run; FailedPrecondition when it made no step on some worker, or is in a mode
  // whose workers do not wait for each other.
  absl::StatusOr<JobFigures> FiguresOf(const std::string& job) const;

  // {"seconds":10.2,"jobs":[{"job":1,"name":"bert","why_not":"","advice":[{"bound":"straggler",
  // "share":0.6,"gain":0.6,"sure":"very","what":"…","change":"…"}]}]}: of jobs that run.
  std::string AllJson() const;

 private:
  struct Worker {
    uint32_t incarnation = 0;
    WorkerPhases phases = {};
    uint64_t bytes = 0;
  };
  struct Job {
    uint32_t job = 0;
    std::string phase = {};
    JobFigures settings = {};  // without workers and servers
    std::string mode = {};
    std::map<uint32_t, Worker> workers = {};  // by rank
    std::map<uint32_t, ServerPhases> servers = {};
  };
  struct Sample {
    absl::Duration time = {};
    std::map<std::string, Job> jobs = {};  // by name: the newest of each
  };

  std::deque<Sample> samples_;
};

// The advice on one job as lines of text, and as {"step_seconds":0.08,"advice":[...]}.
std::string AdviceAsText(const std::string& job, const JobFigures& figures);
std::string AdviceAsJson(const JobFigures& figures);

}  // namespace syncline
