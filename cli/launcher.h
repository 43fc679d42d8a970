// Runs a launch plan: starts the services, then the workers, and watches them until the
// run is over.
//
// States: services up -> workers running -> stopping -> done.
//
// - Worker failure: the launcher starts the worker again with the same rank while it has
// restarts left. The coordinator treats it as a new incarnation. The first restart is
// immediate, later ones wait for growing pauses. After three restarts in a row in which
// the job made no progress, there is no further one. Without a restart the job continues
// if `min_workers` are left; otherwise the launcher stops everything.
//
// - Server death: a server that has a journal is started again. If another server holds
// its backup, the job continues without it. Otherwise the run ends, since weights are
// lost.
//
// - Coordinator death: the coordinator is started again at the same address, with its
// stored state.
//
// The launcher starts its services as `<syncline> serve ...`. Once a service is up, it
// must print one line on standard output:
//
//   syncline: ready control=HOST:PORT admin=HOST:PORT [server=NUMBER]
//
// A server prints this line again when the coordinator assigns it another number.
// Messages of the launcher use this number for the server, as `syncline status` does.
//
// Not thread-safe.
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
#include "cli/trainjob/pusher.h"
#include "cli/worker_error.h"
#include "comm/job/durability.h"

namespace syncline {

struct ReadyLine {
  std::string control;
  std::string admin;
  std::optional<uint32_t> server = {};  // the coordinator's number for it
};

// Returns nullopt for any other line.
std::optional<ReadyLine> ParseReadyLine(std::string_view line);

// Process name of the coordinator. Servers and their logs are named "server0", "server1".
inline constexpr char kCoordinator[] = "coordinator";

class Launcher {
 public:
  // `syncline` is the path of the binary that runs the services.
  Launcher(const RunOptions& options, LaunchPlan plan, std::string syncline);
  ~Launcher();

  // Sets a callback that receives the coordinator's address when the workers are done,
  // while the services still run.
  void set_at_end(std::function<void(const std::string& coordinator)> at_end) {
    at_end_ = std::move(at_end);
  }

  // Sets a callback that receives the address of the coordinator that this launcher
  // started.
  void set_at_start(std::function<void(const std::string& coordinator)> at_start) {
    at_start_ = std::move(at_start);
  }

  // Blocks until the run is over. Returns kExitDone when all workers succeeded, and 128 +
  // signal after Ctrl-C or SIGTERM. Otherwise the error names the process that failed,
  // the cause and its log file.
  absl::StatusOr<int> Run();

  // Prints a line on standard error.
  static void Say(const std::string& line);

  // Resources that each process used, by process name; complete after Run.
  std::map<std::string, ProcessUsage> usage() const { return processes_->usage(); }

 private:
  absl::Status MakeDirectories();
  absl::Status StartCoordinator();
  // Waits for a coordinator that was started elsewhere.
  absl::Status AwaitCoordinator();
  absl::Status StartServers();
  // Starts the coordinator or a server, for the first time or again.
  absl::Status StartService(const std::string& name);
  std::vector<std::string> FlagsOf(const std::string& name) const;
  absl::Status WaitUntilReady(const std::set<std::string>& names);
  absl::Status StartWorkers();
  absl::Status StartWorker(const WorkerPlan& worker);
  absl::Status Watch();
  void WatchCheckpoints(JobWatch::Options::Finds finds);
  void PushProgress();
  // Fails with Failure::kStateUnusable when the job's last step is not saved.
  absl::Status AwaitLastCheckpoint();
  absl::Status NotSaved(const std::string& why) const;
  absl::Status OnExit(const ProcessEvent& event);
  absl::Status StartWhatIsDue();
  absl::Time NextRestart() const;
  bool MayRejoin(int rank) const;
  void OnLatecomer(int rank);
  // While latecomers wait: looks for a new run, and starts them as its members.
  absl::Status LookForNewRun();
  bool IsWorking(const WorkerPlan& worker) const;
  // Returns advice for the user: the flags that would have kept the run going when this
  // worker was lost. Empty for an error of the program itself.
  std::string WaysOn(int wait_status) const;
  absl::Status OnWorkerFailure(const WorkerPlan& worker, const ProcessEvent& event);
  // Reports a worker's end to the coordinator. `then` says what the launcher does about
  // it.
  void Report(const WorkerPlan& worker, const ProcessEvent& event,
              const std::string& then);
  // Tells a coordinator that keeps running which workers are being stopped, and by which
  // signal.
  void ReportStop();
  ExitReports& Exits();
  // Whether a worker that has just failed may be restarted.
  bool MayStartAgain(int rank);
  absl::Status StopBecauseOf(const WorkerPlan& worker, const ProcessEvent& event,
                             const std::string& who);
  struct FirstFailure {
    const WorkerPlan* worker = nullptr;
    WorkerError error;
  };
  // Returns the worker whose error file is the oldest: later failures may be consequences
  // of it. Ignores errors that were already reported.
  std::optional<FirstFailure> FindFirstFailure() const;
  // Waits for the exit of a worker that has already written why it ends. Returns nullopt
  // if that takes too long.
  std::optional<ProcessEvent> AwaitEnd(const std::string& name);
  absl::Status OnCoordinatorDeath(const ProcessEvent& event);
  absl::Status OnServerDeath(const ProcessEvent& event);
  // Schedules a restart after a pause that grows with `restarts`. `how` is for the
  // message, such as "with its journal".
  void StartAgain(const ProcessEvent& event, int restarts, const std::string& how);
  // What the coordinator knows about the job; values of the flags where it does not know
  // the job or does not answer.
  struct JobFacts {
    JobSteps steps = {};  // by job name, for all jobs of this run
    std::optional<Durability> durability = std::nullopt;  // empty: unknown
    std::string mode = {};                                // empty: unknown
    // Whether the job waits until dead servers return with their journals.
    bool waits_for_servers = true;
    bool lacks_workers = false;  // a run of it goes on, or begins, without some workers
  };
  JobFacts AskForJob() const;
  std::string WhatIsLeft(const std::string& what, const JobFacts& job) const;
  bool AnotherServerRuns(const std::string& name) const;
  bool ServersComeBack(const JobFacts& job) const;
  absl::Status ServiceDied(const ProcessEvent& event) const;
  // Returns "server 3", or the process's name while it has no number yet.
  std::string CalledByStatus(const std::string& name) const;
  void OnReady(const std::string& name, ReadyLine ready);
  void Announce() const;
  // Says what Ctrl-C or SIGTERM ends, and how.
  void SayWhatEnds() const;
  void StopAll();
  void StopAndWait(const std::vector<std::string>& names, absl::Duration grace);
  void RemoveDirectories(const absl::Status& outcome);
  std::string LogPath(const std::string& name) const;
  // Path of the file in which a worker's program may say why it ended (worker_error.h).
  std::string ErrorPath(const std::string& name) const;
  void ForgetError(const WorkerPlan& worker) const;
  const WorkerPlan* FindWorker(const std::string& name) const;

  const RunOptions options_;
  const LaunchPlan plan_;
  const std::string syncline_;
  std::string scratch_;  // service state; also the logs without --log-dir
  std::string log_dir_;
  std::string coordinator_;
  std::string master_port_;
  std::function<void(const std::string&)> at_start_;
  std::function<void(const std::string&)> at_end_;
  std::unique_ptr<ProcessGroup> processes_;
  std::unique_ptr<JobWatch> job_;           // null: no checkpoint is awaited
  std::unique_ptr<TrainJobPusher> pusher_;  // null: this is no pod of a TrainJob
  std::unique_ptr<ExitReports> exits_;      // created by the first report
  std::map<std::string, ReadyLine> ready_;
  std::map<std::string, uint32_t> numbers_;  // last known number of each server
  std::set<std::string> services_;
  std::vector<std::string> servers_;
  std::map<std::string, FruitlessRestarts> server_restarts_;
  int coordinator_restarts_ = 0;  // restarts in a row since it last ran for a while
  std::string coordinator_admin_;
  std::map<std::string, absl::Time> service_start_at_;  // pending service restarts
  std::map<int, int> restarts_;                         // number of restarts by rank
  std::map<int, FruitlessRestarts> fruitless_;          // by rank
  Latecomers latecomers_;
  absl::Time look_for_new_run_at_ = absl::InfiniteFuture();
  std::map<int, absl::Time> restart_at_;  // pending worker restarts by rank
  int failed_ = 0;
  int signal_ = 0;         // that stops the run; 0: none
  bool in_haste_ = false;  // the user asked twice: kill without grace
};

}  // namespace syncline
