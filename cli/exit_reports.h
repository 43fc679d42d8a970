// Reports to the coordinator, as events of a job, how workers of this host died, and
// which workers the launcher stops on request. The coordinator only sees a broken stream;
// the launcher knows the signal and the program's last words.
//
//   ExitReports reports({.coordinator = "127.0.0.1:7070", .job = "default"});
//   reports.Add({.rank = 2, .how = "signal 9 (Killed)", .then = "started again (1 of 3)"});
//   reports.Add(StopReport{.ranks = {0, 1, 2}, .why = "SIGTERM"});
//
// A thread sends the reports in order, once each. A report that does not arrive is lost;
// the launcher prints the same facts itself.
//
// Thread safety: all methods from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/rpc/tls.h"

namespace syncline {

struct ExitReport {
  uint32_t rank = 0;
  std::string how = {};   // "signal 9 (Killed)"
  std::string then = {};  // "started again (1 of 3)"
  std::string said = {};  // the process's last words; empty: none
};

struct StopReport {
  std::vector<uint32_t> ranks = {};
  std::string why = {};   // "SIGINT (Ctrl-C)"
  std::string host = {};  // the launcher's host
};

class ExitReports {
 public:
  struct Options {
    std::string coordinator;
    std::string job;
    std::string run_id = {};
    TlsOptions tls = {};
  };

  explicit ExitReports(Options options);
  // Sends the remaining reports, unless the coordinator does not answer.
  ~ExitReports();

  // Queues a report. Drops it when too many wait.
  void Add(std::variant<ExitReport, StopReport> report) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Report = std::variant<ExitReport, StopReport>;

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool Send(const Report& report) const;

  const Options options_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Report> reports_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last, since it uses all the others
};

}  // namespace syncline
