// What launchers report to the coordinator about a job. Each report is a call and has one
// CallAnswer. CheckReport (job.h) says which reports are refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace syncline {

// A launcher reports that a worker's process has failed. Not authenticated by the worker.
struct WorkerExit {
  std::string job = {};
  std::string run_id = {};
  uint32_t rank = 0;
  std::string how = {};   // "signal 9 (Killed)"
  std::string then = {};  // "started again (1 of 3)"; empty: unknown
  std::string said = {};  // the program's last lines; empty: unknown
};
// A launcher was told to end, and stops its workers (job_stop.cc). Not
// authenticated by the workers.
struct LauncherStop {
  std::string job = {};
  std::string run_id = {};
  std::vector<uint32_t> ranks = {};  // ranks on its host
  std::string why = {};              // "SIGINT (Ctrl-C)"
  std::string host = {};
  bool of_this_job_alone = false;  // the caller's certificate is limited to this job
};
// A launcher reports how often it has pushed the job's progress to Kubernetes since it
// started (cli/trainjob).
struct TrainJobPushes {
  std::string job = {};
  std::string run_id = {};
  uint64_t sent = 0;
  uint64_t failed = 0;
};

}  // namespace syncline
