#include "cli/launcher.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/process_end.h"
#include "cli/scratch_folder.h"
#include "cli/worker_error.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/host_name.h"
#include "comm/base/machine.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"

namespace syncline {
namespace {

// The coordinator waits equally long for servers that write the last checkpoint.
constexpr absl::Duration kLastCheckpointTimeout = absl::Minutes(30);
constexpr absl::Duration kLookForEndEvery = absl::Milliseconds(50);
// Both graces together are below two seconds, the limit for Ctrl-C.
constexpr absl::Duration kWorkerGrace = absl::Milliseconds(1000);
constexpr absl::Duration kServiceGrace = absl::Milliseconds(500);

std::string Counted(size_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

void ShowLines(const std::string& what, const auto& lines) {
  Launcher::Say(what + ":");
  for (const std::string& line : lines) std::cerr << "  " << line << "\n";
}

std::string DescribeFailure(const WorkerPlan& worker, const ProcessEvent& event) {
  return absl::StrFormat("worker %d %s after %.1f s", worker.rank,
                         HowItFailed(event.wait_status),
                         absl::ToDoubleSeconds(event.lived));
}

}  // namespace

Launcher::Launcher(const RunOptions& options, LaunchPlan plan, std::string syncline)
    : options_(options),
      plan_(std::move(plan)),
      syncline_(std::move(syncline)),
      coordinator_(options.coordinator) {}

Launcher::~Launcher() = default;

void Launcher::Say(const std::string& line) {
  std::cerr << "syncline: " << line << std::endl;
}

absl::StatusOr<int> Launcher::Run() {
  SYNCLINE_RETURN_IF_ERROR(CheckProgram(options_.program.front()));
  SYNCLINE_RETURN_IF_ERROR(MakeDirectories());
  SYNCLINE_ASSIGN_OR_RETURN(processes_, ProcessGroup::Create());
  absl::Status outcome = StartCoordinator();
  if (outcome.ok()) outcome = StartServers();
  if (outcome.ok() && signal_ == 0) {
    Announce();
    // While the job runs, one launcher is enough to watch its checkpoints.
    if (options_.node_rank == 0) WatchCheckpoints(JobWatch::Options::Finds::kNew);
    PushProgress();
    outcome = StartWorkers();
  }
  if (outcome.ok()) outcome = Watch();
  if (outcome.ok() && signal_ == 0) outcome = AwaitLastCheckpoint();
  if (outcome.ok() && signal_ == 0 && pusher_ != nullptr) pusher_->Finish();
  if (job_ != nullptr) std::ranges::for_each(job_->Closing(), Say);
  if (signal_ == 0) job_.reset();
  if (at_end_ && !coordinator_.empty()) at_end_(coordinator_);
  if (signal_ != 0) {
    SayWhatEnds();
    ReportStop();
  }
  if (pusher_ != nullptr) pusher_->Stop();
  StopAll();
  job_.reset();  // may wait for a look-up that hangs
  pusher_.reset();
  exits_.reset();
  RemoveDirectories(outcome);
  if (signal_ != 0) return 128 + signal_;
  SYNCLINE_RETURN_IF_ERROR(outcome);
  return kExitDone;
}

absl::Status Launcher::MakeDirectories() {
  SYNCLINE_ASSIGN_OR_RETURN(scratch_, MakeScratchFolder("syncline-"));
  log_dir_ = options_.log_dir.empty() ? scratch_ + "/logs" : options_.log_dir;
  std::error_code error;
  std::filesystem::create_directories(log_dir_, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat(
        "cannot make --log-dir '", log_dir_, "': ", error.message(), "; choose another"));
  }
  return absl::OkStatus();
}

std::string Launcher::LogPath(const std::string& name) const {
  return absl::StrCat(log_dir_, "/", name, ".log");
}

std::string Launcher::ErrorPath(const std::string& name) const {
  return absl::StrCat(log_dir_, "/", name, ".error.json");
}

const WorkerPlan* Launcher::FindWorker(const std::string& name) const {
  for (const WorkerPlan& worker : plan_.workers) {
    if (worker.name == name) return &worker;
  }
  return nullptr;
}

void Launcher::Announce() const {
  std::string line =
      absl::StrCat("job ", options_.job, ": ", Counted(plan_.workers.size(), "worker"),
                   " and ", Counted(static_cast<size_t>(plan_.servers), "server"),
                   " here, coordinator ", coordinator_);
  if (!coordinator_admin_.empty()) {
    absl::StrAppend(&line, ", dashboard http://", coordinator_admin_);
  }
  Say(absl::StrCat(
      line, ", logs ", log_dir_,
      options_.log_dir.empty() ? " (removed once all workers succeed)" : ""));
}

absl::Status Launcher::StartWorkers() {
  if (options_.master_port > 0) {
    master_port_ = absl::StrCat(options_.master_port);
  } else if (plan_.starts_coordinator && std::getenv("MASTER_PORT") == nullptr) {
    // For torch.distributed, which the program may use too (its env:// rendezvous).
    SYNCLINE_ASSIGN_OR_RETURN(const int port, PickFreePort("127.0.0.1"));
    master_port_ = absl::StrCat(port);
  }
  for (const WorkerPlan& worker : plan_.workers) {
    SYNCLINE_RETURN_IF_ERROR(StartWorker(worker));
  }
  return absl::OkStatus();
}

absl::Status Launcher::StartWorker(const WorkerPlan& worker) {
  ProcessSpec spec;
  spec.name = worker.name;
  spec.argv = options_.program;
  spec.out = worker.out;
  spec.err = worker.err;
  spec.log_path = LogPath(worker.name);
  spec.env = worker.env;
  spec.env.insert(spec.env.end(), options_.env.begin(), options_.env.end());
  ForgetError(worker);
  spec.env.emplace_back("TORCHELASTIC_ERROR_FILE", ErrorPath(worker.name));
  spec.env.emplace_back("TORCHELASTIC_RESTART_COUNT",
                        absl::StrCat(restarts_[worker.rank]));
  if (MayRejoin(worker.rank)) spec.env.emplace_back("SYNCLINE_REJOIN", "1");
  SYNCLINE_ASSIGN_OR_RETURN(const HostPort coordinator, ParseHostPort(coordinator_.substr(
                                                            0, coordinator_.find(','))));
  spec.env.emplace_back("SYNCLINE_COORDINATOR", coordinator_);
  const std::string& master = options_.master_addr;
  spec.env.emplace_back("MASTER_ADDR", master.empty() ? coordinator.host : master);
  if (!master_port_.empty()) spec.env.emplace_back("MASTER_PORT", master_port_);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    // Divides the cores. Otherwise every worker would use all of them.
    const int local = static_cast<int>(plan_.workers.size());
    spec.env.emplace_back("OMP_NUM_THREADS",
                          absl::StrCat(std::max(1, DescribeMachine().cores / local)));
  }
  return processes_->Start(spec);
}

absl::Status Launcher::Watch() {
  const auto is_working = [this](const WorkerPlan& worker) { return IsWorking(worker); };
  while (signal_ == 0 &&
         std::any_of(plan_.workers.begin(), plan_.workers.end(), is_working)) {
    SYNCLINE_RETURN_IF_ERROR(StartWhatIsDue());
    SYNCLINE_RETURN_IF_ERROR(LookForNewRun());
    const ProcessEvent event =
        processes_->Next(std::min(NextRestart(), look_for_new_run_at_));
    if (event.kind == ProcessEvent::kSignal) signal_ = event.signal;
    if (event.kind == ProcessEvent::kExit) SYNCLINE_RETURN_IF_ERROR(OnExit(event));
  }
  return absl::OkStatus();
}

void Launcher::WatchCheckpoints(JobWatch::Options::Finds finds) {
  const bool may_be_saved = !plan_.starts_coordinator ||
                            !options_.checkpoint_dir.empty() ||
                            !options_.journal_dir.empty();
  if (!may_be_saved || job_ != nullptr) return;
  JobNews::Options job{.name = options_.job,
                       .is_scheduled = !options_.checkpoint_dir.empty() ||
                                       !options_.Setting("checkpoint_every").empty(),
                       .goodbyes_within = plan_.failure_timeout};
  for (const WorkerPlan& worker : plan_.workers) job.ranks.insert(worker.member);
  const JobWatch::Options watch{.coordinator = coordinator_,
                                .job = job,
                                .run_id = options_.run_id,
                                .tls = options_.tls,
                                .finds = finds};
  job_ = std::make_unique<JobWatch>(watch, Say);
}

void Launcher::PushProgress() {
  if (options_.node_rank != 0 || options_.trainjob_status == "never") return;
  pusher_ = MakeTrainJobPusher(coordinator_, options_.tls,
                               {.job = options_.job, .run_id = options_.run_id}, Say);
}

absl::Status Launcher::NotSaved(const std::string& why) const {
  return WithFailure(
      absl::UnavailableError(absl::StrCat(
          "the workers are done, but the last step of job '", Printable(options_.job),
          "' is not saved: ", why, "; the last checkpoint is ", job_->LastCheckpoint())),
      Failure::kStateUnusable);
}

absl::Status Launcher::AwaitLastCheckpoint() {
  WatchCheckpoints(JobWatch::Options::Finds::kAny);
  if (job_ == nullptr) return absl::OkStatus();
  job_->Hurry();
  const absl::Time deadline = absl::Now() + kLastCheckpointTimeout;
  while (absl::Now() < deadline) {
    if (const auto end = job_->End()) return *end;
    SYNCLINE_RETURN_IF_ERROR(StartWhatIsDue());
    const ProcessEvent event =
        processes_->Next(std::min(deadline, absl::Now() + kLookForEndEvery));
    if (event.kind == ProcessEvent::kExit) {
      return NotSaved(std::string(ServiceDied(event).message()));
    }
    if (event.kind == ProcessEvent::kSignal) signal_ = event.signal;
    if (signal_ != 0) return absl::OkStatus();
  }
  return NotSaved("it takes more than 30 minutes");
}

bool Launcher::IsWorking(const WorkerPlan& worker) const {
  return processes_->IsRunning(worker.name) || restart_at_.contains(worker.rank);
}

absl::Time Launcher::NextRestart() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [rank, at] : restart_at_) next = std::min(next, at);
  for (const auto& [service, at] : service_start_at_) next = std::min(next, at);
  return next;
}

absl::Status Launcher::StartWhatIsDue() {
  for (const std::string& service : services_) {
    const auto due = service_start_at_.find(service);
    if (due == service_start_at_.end() || absl::Now() < due->second) continue;
    service_start_at_.erase(due);
    SYNCLINE_RETURN_IF_ERROR(StartService(service));
  }
  for (const WorkerPlan& worker : plan_.workers) {
    const auto due = restart_at_.find(worker.rank);
    if (due == restart_at_.end() || absl::Now() < due->second) continue;
    restart_at_.erase(due);
    SYNCLINE_RETURN_IF_ERROR(StartWorker(worker));
  }
  return absl::OkStatus();
}

absl::Status Launcher::OnExit(const ProcessEvent& event) {
  const WorkerPlan* worker = FindWorker(event.name);
  if (worker == nullptr) {
    return event.name == kCoordinator ? OnCoordinatorDeath(event) : OnServerDeath(event);
  }
  const bool came_too_late =
      MayRejoin(worker->rank) && FailureOfExit(event.wait_status) == Failure::kJobOver;
  if (came_too_late) {
    OnLatecomer(worker->rank);
  } else if (!Succeeded(event.wait_status)) {
    return OnWorkerFailure(*worker, event);
  }
  ForgetError(*worker);  // the worker has recovered
  return absl::OkStatus();
}

ExitReports& Launcher::Exits() {
  if (exits_ == nullptr) {
    exits_ =
        std::make_unique<ExitReports>(ExitReports::Options{.coordinator = coordinator_,
                                                           .job = options_.job,
                                                           .run_id = options_.run_id,
                                                           .tls = options_.tls});
  }
  return *exits_;
}

// Called before the workers are stopped, so that the coordinator treats their broken
// streams as those of workers that will not return.
void Launcher::ReportStop() {
  StopReport report = {.why = SignalName(signal_), .host = HostName()};
  bool anyone_works = false;
  for (const WorkerPlan& worker : plan_.workers) {
    anyone_works = anyone_works || IsWorking(worker);
    if (worker.is_leader) report.ranks.push_back(worker.member);  // even if it failed
  }
  if (!plan_.starts_coordinator && anyone_works) Exits().Add(std::move(report));
}

void Launcher::Report(const WorkerPlan& worker, const ProcessEvent& event,
                      const std::string& then) {
  const auto error = ReadWorkerError(ErrorPath(worker.name));
  // The last line of a killed process does not explain its death.
  const bool was_killed =
      WIFSIGNALED(event.wait_status) && WTERMSIG(event.wait_status) == SIGKILL;
  Exits().Add(ExitReport{.rank = worker.member,
                         .how = worker.within + DescribeExit(event.wait_status),
                         .then = then,
                         .said = error        ? error->message
                                 : was_killed ? ""
                                              : LastLine(event)});
}

absl::Status Launcher::OnWorkerFailure(const WorkerPlan& worker,
                                       const ProcessEvent& event) {
  std::string who = DescribeFailure(worker, event);
  const auto error = ReadWorkerError(ErrorPath(worker.name));
  const std::string said = error ? absl::StrCat(": ", error->message) : "";
  const bool was_excluded = FailureOfExit(event.wait_status) == Failure::kExcluded;
  if (!was_excluded && MayStartAgain(worker.rank)) {
    const int restarts = ++restarts_[worker.rank];
    const int in_a_row = fruitless_[worker.rank].NoteRestart();
    const absl::Duration pause = PauseBefore(in_a_row, options_.restart_pause);
    Say(absl::StrCat(who, said, "; starting it again ", DescribePause(pause), "(",
                     restarts, " of ", options_.max_restarts, ")"));
    Report(worker, event,
           absl::StrCat("started again ", DescribePause(pause), "(", restarts, " of ",
                        options_.max_restarts, ")"));
    ForgetError(worker);
    restart_at_[worker.rank] = absl::Now() + pause;
    latecomers_.NoteRestart(worker.rank);
    return absl::OkStatus();
  }
  if (!was_excluded && restarts_[worker.rank] < options_.max_restarts) {
    absl::StrAppend(&who, "; ", fruitless_[worker.rank].Describe());
  }
  ++failed_;
  const int gone = failed_ + latecomers_.waiting();
  const bool is_last_here = gone == static_cast<int>(plan_.workers.size());
  // The coordinator excludes a worker only if enough of them stay.
  if (!is_last_here && (was_excluded || plan_.world_size - gone >= plan_.min_workers)) {
    const int others = plan_.world_size - gone;
    Say(absl::StrCat(who, said, "; ", Counted(static_cast<size_t>(others), "worker"),
                     others == 1 ? " goes" : " go",
                     " on; its log stays: ", LogPath(worker.name)));
    Report(worker, event, "the others go on");
    ForgetError(worker);
    return absl::OkStatus();
  }
  Report(worker, event,
         was_excluded ? "it was the last one here: its launcher ends"
                      : "its launcher stops the run");
  const std::optional<FirstFailure> first = FindFirstFailure();
  if (first && first->worker != &worker) {
    if (const auto end = AwaitEnd(first->worker->name);
        end && !Succeeded(end->wait_status)) {
      return StopBecauseOf(*first->worker, *end, DescribeFailure(*first->worker, *end));
    }
  }
  return StopBecauseOf(worker, event, who);
}

std::optional<ProcessEvent> Launcher::AwaitEnd(const std::string& name) {
  const absl::Time deadline = absl::Now() + kWorkerGrace;
  while (processes_->IsRunning(name) && signal_ == 0 && absl::Now() < deadline) {
    ProcessEvent event = processes_->Next(deadline);
    if (event.kind == ProcessEvent::kSignal) signal_ = event.signal;
    if (event.kind == ProcessEvent::kExit && event.name == name) return event;
  }
  return std::nullopt;
}

// The worker's own message goes to the end, where users look first.
absl::Status Launcher::StopBecauseOf(const WorkerPlan& worker, const ProcessEvent& event,
                                     const std::string& who) {
  const bool logged = worker.out != Output::kInherit || worker.err != Output::kInherit;
  std::string why = absl::StrCat(
      who, "; ",
      logged ? absl::StrCat("its log is ", LogPath(worker.name)) : "see its output above",
      WaysOn(event.wait_status));
  const std::optional<FirstFailure> first = FindFirstFailure();
  if (first && !first->error.traceback.empty()) {
    // Otherwise the traceback is on the terminal already.
    if (first->worker->err == Output::kLog) {
      ShowLines(absl::StrCat("traceback of worker ", first->worker->rank),
                first->error.traceback);
    }
  } else if (!event.tail.empty() && worker.err == Output::kLog) {
    ShowLines(absl::StrCat("last lines of worker ", worker.rank), event.tail);
  }
  if (first) {
    absl::StrAppend(&why, "; ",
                    first->worker == &worker
                        ? "it said"
                        : absl::StrCat("worker ", first->worker->rank, ", whose log is ",
                                       LogPath(first->worker->name), ", failed first"),
                    ": ", first->error.message);
    PassOnWorkerError(ErrorPath(first->worker->name));
  }
  return WithFailure(absl::AbortedError(why), FailureOfWorker(event.wait_status));
}

std::optional<Launcher::FirstFailure> Launcher::FindFirstFailure() const {
  std::optional<FirstFailure> first;
  for (const WorkerPlan& worker : plan_.workers) {
    auto error = ReadWorkerError(ErrorPath(worker.name));
    if (error && (!first || error->written_at < first->error.written_at)) {
      first = FirstFailure{&worker, *std::move(error)};
    }
  }
  return first;
}

void Launcher::ForgetError(const WorkerPlan& worker) const {
  std::error_code ignored;  // usually there is no such file
  std::filesystem::remove(ErrorPath(worker.name), ignored);
}

std::string Launcher::WaysOn(int wait_status) const {
  const bool was_lost =
      WIFSIGNALED(wait_status) ||
      (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kExitRetryable);
  if (!was_lost || !options_.advises || options_.max_restarts > 0 ||
      plan_.world_size == 1) {
    return "";
  }
  return "; --max-restarts 3 would start it again, --min-workers 1 go on without it";
}

void Launcher::SayWhatEnds() const {
  std::vector<int> ranks;
  for (const WorkerPlan& worker : plan_.workers) {
    if (processes_->IsRunning(worker.name)) ranks.push_back(worker.rank);
  }
  const auto services = static_cast<size_t>(std::ranges::count_if(
      services_,
      [this](const std::string& service) { return processes_->IsRunning(service); }));
  std::vector<std::string> what;
  if (!ranks.empty()) {
    what.push_back(
        absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", ")));
  }
  if (services > 0) what.push_back(Counted(services, "service"));
  Say(absl::StrCat(signal_ == SIGINT ? "Ctrl-C" : strsignal(signal_), ": ending ",
                   what.empty() ? "" : absl::StrCat(absl::StrJoin(what, " and "), " "),
                   "with exit code ", 128 + signal_, "; killed after ",
                   absl::FormatDuration(kWorkerGrace), ", or at once when asked again"));
}

void Launcher::StopAll() {
  std::vector<std::string> workers;
  for (const WorkerPlan& worker : plan_.workers) workers.push_back(worker.name);
  StopAndWait(workers, kWorkerGrace);
  StopAndWait({services_.begin(), services_.end()}, kServiceGrace);
}

void Launcher::StopAndWait(const std::vector<std::string>& names, absl::Duration grace) {
  if (in_haste_) grace = absl::ZeroDuration();
  for (const std::string& name : names) processes_->Stop(name, grace);
  const auto is_running = [this](const std::string& name) {
    return processes_->IsRunning(name);
  };
  while (std::any_of(names.begin(), names.end(), is_running)) {
    const ProcessEvent event = processes_->Next(absl::InfiniteFuture());
    // A second signal means that the user is in a hurry.
    if (event.kind != ProcessEvent::kSignal) continue;
    if (signal_ == 0) signal_ = event.signal;
    in_haste_ = true;
    for (const std::string& name : names) processes_->Stop(name, absl::ZeroDuration());
  }
}

void Launcher::RemoveDirectories(const absl::Status& outcome) {
  std::error_code ignored;  // a leftover in the temporary directory does no harm
  std::filesystem::remove_all(scratch_ + "/state", ignored);
  const bool all_succeeded = outcome.ok() && failed_ == 0 && signal_ == 0;
  if (all_succeeded || !options_.log_dir.empty())
    std::filesystem::remove_all(scratch_, ignored);
}

}  // namespace syncline
