// Computes what recent steps of jobs took, from the differences between statuses
// (comm/rpc/status_json.h). The result goes to the rules (advice.h), or as JSON to the
// dashboard.
//
//   Advisor advisor;
//   advisor.Add(status_json, now);                    // from time to time
//   for (const Advice& advice : Advise(*advisor.FiguresOf("bert"))) …
//
// Each member has its own window (step_window.h). So steps may take longer than the time
// between statuses, and a member without a step does not delay the results of others.
//
// A new epoch begins with a step that its workers spend waiting: until a member that died
// is given up, or until a newcomer has warmed up. To the rules that would look like a slow
// server. So only steps after it count.
//
// Keeps a bounded number of sums for each member.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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
  // Looks back for ten seconds, or for `length` if that is longer.
  explicit Advisor(absl::Duration length = absl::ZeroDuration());

  // `now` is monotonic. Fails with Internal, and changes nothing, if this is not a status.
  absl::Status Add(const std::string& status_json, absl::Duration now);

  // Returns the mean times of the last steps that were seen. Fails with NotFound, which
  // names the known jobs, if there is no such job. Fails with FailedPrecondition if the
  // job is not running, if no worker made a step, if its epoch has just changed, or if its
  // workers do not wait for each other (mode asp).
  absl::StatusOr<JobFigures> FiguresOf(const std::string& job) const;

  // Returns the advice for the jobs that run:
  //
  //   {"seconds":10.2,"jobs":[{"job":1,"name":"bert","why_not":"","without_a_step":[2],
  //   "advice":[{"bound":"straggler","share":0.6,"gain":0.6,"sure":"very","what":"…",
  //   "change":"…"}]}]}
  //
  // `seconds` is the longest window of all jobs. `why_not` says why a job has no advice.
  std::string AllJson() const;

 private:
  using WorkerWindow = StepWindow<kWorkerPhaseNames.size()>;
  using ServerWindow = StepWindow<kServerPhaseNames.size()>;
  struct Worker {
    uint32_t incarnation = 0;
    WorkerWindow window;
    double sent_bytes_per_second = 0;
    double received_bytes_per_second = 0;
  };
  struct Job {
    uint32_t job = 0;
    uint64_t epoch = 0;
    bool began_lately = false;  // this epoch: its beginning or its first step was seen
    // Highest step that a member had reported when the epoch began. Sums that are
    // reported at this step or before do not count. Empty: not known.
    std::optional<uint64_t> began_at = std::nullopt;
    std::string phase = {};
    JobFigures settings = {};  // without workers and servers
    std::string mode = {};
    double parameters = 0;
    std::map<uint32_t, Worker> workers = {};  // by rank
    std::map<uint32_t, ServerWindow> servers = {};
  };

  // Takes note of the job's epoch, and forgets the steps of an earlier one.
  static void AddEpoch(const nlohmann::json& of, Job& job);
  void AddMembers(const nlohmann::json& of, Job& job) const;

  const absl::Duration length_;
  std::map<std::string, Job> jobs_;  // the newest of each name
  absl::Duration now_ = {};          // of the last status
};

// Return the advice for one job as lines of text, and as
// {"step_seconds":0.08,"without_a_step":[],"advice":[...]}.
std::string AdviceAsText(const std::string& job, const JobFigures& figures);
std::string AdviceAsJson(const JobFigures& figures);

}  // namespace syncline
