// Runs a launch plan: services first, then workers; then watches them until all is over.
//
// State: services up -> workers running -> stopping -> done. A worker that fails is
// started again with the same rank while restarts are left (the coordinator takes it for
// a new incarnation), at once and then after growing pauses, three times in a row at most
// while the job comes no further; after that the job goes on if it still has
// `min_workers`, otherwise everything is stopped. A server that dies is started again if
// it has a journal, left alone if another one has its backup, and otherwise ends the run:
// it held weights. A coordinator that dies is started again at the same address, with the
// state that it had stored.
//
// The launcher starts its services as `<syncline> serve ...` and expects each to print,
// once it is up, one line on standard output:
//
//   syncline: ready control=HOST:PORT admin=HOST:PORT [server=NUMBER]
//
// and a server again when the coordinator gives it another number. By that number the
// launcher speaks of it, as status does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/exit_reports.h"
#include "cli/job_watch.h"
#include "cli/latecomers.h"
#include "cli/launch_plan.h"
#include "cli/process.h"
#include "cli/process_end.h"
#include "cli/worker_error.h"

namespace syncline {

struct ReadyLine {
  std::string control;
  std::string admin;
  std::optional<uint32_t> server = {};  // as the coordinator calls it
};

// nullopt for any other line.
std::optional<ReadyLine> ParseReadyLine(std::string_view line);

// The process; those of servers, and their logs, are "server0", "server1".
inline constexpr char kCoordinator[] = "coordinator";

class Launcher {
 public:
  // `syncline` is the binary that serves.
  Launcher(const RunOptions& options, LaunchPlan plan, std::string syncline);
  ~Launcher();

  // Called with the coordinator's address when the workers are done and the services
  // still run.
  void set_at_end(std::function<void(const std::string& coordinator)> at_end) {
    at_end_ = std::move(at_end);
  }

  // Called with the address of the coordinator that the launcher has started.
  void set_at_start(std::function<void(const std::string& coordinator)> at_start) {
    at_start_ = std::move(at_start);
  }

  // Blocks until the run is over. kExitDone when all workers succeeded; 128 + signal
  // after Ctrl-C or SIGTERM; otherwise an error that names who failed, how, and its log
  // file.
  absl::StatusOr<int> Run();

  // A line on standard error.
  static void Say(const std::string& line);

  // What each process used, by its name; complete after Run.
  std::map<std::string, ProcessUsage> usage() const { return processes_->usage(); }

 private:
  absl::Status MakeDirectories();
  absl::Status StartCoordinator();
  // One that somebody else has started.
  absl::Status AwaitCoordinator();
  absl::Status StartServers();
  // One of these, which may have run before.
  absl::Status StartService(const std::string& name);
  std::vector<std::string> FlagsOf(const std::string& name) const;
  absl::Status WaitUntilReady(const std::set<std::string>& names);
  absl::Status StartWorkers();
  absl::Status StartWorker(const WorkerPlan& worker);
  absl::Status Watch();
  void WatchCheckpoints(JobWatch::Options::Finds finds);
  // Not OK (Failure::kStateUnusable) when the last step is not saved.
  absl::Status AwaitLastCheckpoint();
  absl::Status NotSaved(const std::string& why) const;
  absl::Status OnExit(const ProcessEvent& event);
  absl::Status StartWhatIsDue();
  absl::Time NextRestart() const;
  bool MayRejoin(int rank) const;
  void OnLatecomer(int rank);
  void StartAnew(int rank);
  bool IsWorking(const WorkerPlan& worker) const;
  // What would keep the others going when a worker is lost; empty for its own mistakes.
  std::string WaysOn(int wait_status) const;
  absl::Status OnWorkerFailure(const WorkerPlan& worker, const ProcessEvent& event);
  // To the coordinator: `then` is what is done about it.
  void Report(const WorkerPlan& worker, const ProcessEvent& event,
              const std::string& then);
  // To a coordinator that goes on: which workers are stopped, and by which signal.
  void ReportStop();
  ExitReports& Exits();
  // Of a worker that failed just now.
  bool MayStartAgain(int rank);
  absl::Status StopBecauseOf(const WorkerPlan& worker, const ProcessEvent& event,
                             const std::string& who);
  struct FirstFailure {
    const WorkerPlan* worker = nullptr;
    WorkerError error;
  };
  // The oldest error that was not told yet: others may have failed because of it.
  std::optional<FirstFailure> FindFirstFailure() const;
  // Of a worker that has said why it ends: nullopt when that takes too long.
  std::optional<ProcessEvent> AwaitEnd(const std::string& name);
  absl::Status OnCoordinatorDeath(const ProcessEvent& event);
  absl::Status OnServerDeath(const ProcessEvent& event);
  // `how`, such as "with its journal": after a pause that grows with `restarts`.
  void StartAgain(const ProcessEvent& event, int restarts, const std::string& how);
  // By the coordinator; as the flags say when that does not know it or does not answer.
  struct JobFacts {
    JobSteps steps = {};  // of all jobs of this run
    std::string durability = {};
    std::string mode = {};          // empty: not known
    bool waits_for_servers = true;  // that have died, with their journals
  };
  JobFacts AskForJob() const;
  std::string WhatIsLeft(const std::string& what, const JobFacts& job) const;
  bool AnotherServerRuns(const std::string& name) const;
  bool ServersComeBack(const JobFacts& job) const;
  absl::Status ServiceDied(const ProcessEvent& event) const;
  // "server 3", or the process's name before it ever had a number.
  std::string CalledByStatus(const std::string& name) const;
  void OnReady(const std::string& name, ReadyLine ready);
  void Announce() const;
  // What Ctrl-C or SIGTERM ends, and how.
  void SayWhatEnds() const;
  void StopAll();
  void StopAndWait(const std::vector<std::string>& names, absl::Duration grace);
  void RemoveDirectories(const absl::Status& outcome);
  std::string LogPath(const std::string& name) const;
  // Where a worker's program may say why it ended (worker_error.h).
  std::string ErrorPath(const std::string& name) const;
  void ForgetError(const WorkerPlan& worker) const;
  const WorkerPlan* FindWorker(const std::string& name) const;

  const RunOptions options_;
  const LaunchPlan plan_;
  const std::string syncline_;
  std::string scratch_;  // state, and logs unless --log-dir
  std::string log_dir_;
  std::string coordinator_;
  std::string master_port_;
  std::function<void(const std::string&)> at_start_;
  std::function<void(const std::string&)> at_end_;
  std::unique_ptr<ProcessGroup> processes_;
  std::unique_ptr<JobWatch> job_;       // null: nobody is asked for checkpoints
  std::unique_ptr<ExitReports> exits_;  // null: there was nothing to report
  std::map<std::string, ReadyLine> ready_;
  std::map<std::string, uint32_t> numbers_;  // of servers, the last that each had
  std::set<std::string> services_;
  std::vector<std::string> servers_;
  std::map<std::string, FruitlessRestarts> server_restarts_;
  int coordinator_restarts_ = 0;  // since it last lived for a while
  std::string coordinator_admin_;
  std::map<std::string, absl::Time> service_start_at_;  // of those that pause
  std::map<int, int> restarts_;                         // by rank
  std::map<int, FruitlessRestarts> fruitless_;          // by rank
  Latecomers latecomers_;
  std::map<int, absl::Time> restart_at_;  // by rank, of those that pause
  int failed_ = 0;
  int signal_ = 0;         // why the run is being stopped
  bool in_haste_ = false;  // it was asked for twice
};

}  // namespace syncline
