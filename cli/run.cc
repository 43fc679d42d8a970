#include "cli/run.h"

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/earlier_run.h"
#include "cli/flags.h"
#include "cli/launch_plan.h"
#include "cli/launcher.h"
#include "cli/local_runs.h"
#include "cli/serve_options.h"
#include "cli/torchrun.h"
#include "cli/worker_program.h"
#include "comm/base/cuda/driver.h"
#include "comm/base/exit_codes.h"
#include "comm/base/machine.h"
#include "comm/base/process_limits.h"
#include "comm/base/status.h"
#include "comm/job/job_settings.h"

namespace syncline {
namespace {

std::string RandomId() {
  std::random_device device;
  return absl::StrFormat("%08x%08x", device(), device());
}

void AddWorkerFlags(CLI::App& command, RunOptions& options) {
  command.add_option("--workers", options.workers, "Workers of the whole job");
  command.add_option("--min-workers", options.min_workers,
                     "Go on while at least this many workers have not failed (default: "
                     "all, or those of MIN hosts)");
  command.add_option("--nnodes", options.nnodes, "Hosts of the job: N or MIN:MAX")
      ->capture_default_str();
  command.add_option("--node-rank", options.node_rank, "Number of this host, from 0")
      ->capture_default_str();
  command.add_option("--nproc-per-node", options.nproc_per_node,
                     "Workers on each host: N, auto, cpu or gpu");
  command.add_flag("--standalone", options.standalone,
                   "One host, with its own coordinator");
  command
      .add_option("--max-restarts", options.max_restarts,
                  "How often each failed worker is started again; at most three times in "
                  "a row while the job makes no progress")
      ->capture_default_str();
}

void AddServiceFlags(CLI::App& command, RunOptions& options) {
  command
      .add_option(
          "--servers", options.servers,
          "Servers to start here, 0 or more (default: 1, or 0 with --coordinator); 0 "
          "without --coordinator is for programs that use collectives alone")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--coordinator", options.coordinator,
                     "HOST:PORT of a running coordinator (default: start one)");
  command.add_option("--job", options.job, "Name of the job")->capture_default_str();
  command.add_option(
      "--run-id,--rdzv-id", options.run_id,
      "Distinguishes runs of the same job name (default: random on one host)");
  command
      .add_option("--failure-timeout", options.failure_timeout,
                  "How long the job may stand still after the death of a member")
      ->capture_default_str();
  command.add_option("--patience", options.patience,
                     "How long members wait while the coordinator is away, and this "
                     "command for an answer of --coordinator: 90s, 5m (default: 30 times "
                     "--failure-timeout, 5m where that is 10s)");
  command.add_option("--engine-threads", options.engine_threads,
                     "Engine threads of each server");
  command.add_option(
      "--data-plane", options.data_plane,
      "How gradients and weights travel to the servers that are started here: "
      "auto (shared memory in a host, TLS 1.3 between hosts), tls or plain "
      "(neither sealed nor authenticated); default: auto");
  command.add_option("--mode", options.mode,
                     "Which workers wait for others: bsp, bsp:quorum=3,grace_ms=20, "
                     "ssp:3 or asp (default: the program's, or bsp)");
  command.add_flag(
      "--local-aggregation", options.local_aggregation,
      "The workers of a host send the sum of their gradients once, and get weights once: "
      "for programs with syncline.torch on CPUs, mode bsp (docs/pytorch.md)");
}

void AddTrainJobFlags(CLI::App& command, RunOptions& options) {
  command
      .add_option("--trainjob-status", options.trainjob_status,
                  "In a pod of a Kubeflow TrainJob: auto pushes the job's progress to it "
                  "if the pod has a token for that, never does not (docs/trainjob.md)")
      ->check(CLI::IsMember({"auto", "never"}))
      ->capture_default_str();
}

void AddDurabilityFlags(CLI::App& command, RunOptions& options) {
  command.add_option(
      "--checkpoint-dir", options.checkpoint_dir,
      "Where services that are started here keep checkpoints: a directory, or "
      "s3://BUCKET/PREFIX (docs/checkpoints.md)");
  command.add_option("--journal-dir", options.journal_dir,
                     "Where services that are started here keep journals");
  command.add_option(
      "--journal-snapshot-factor", options.journal_snapshot_factor,
      "For services that are started here, as in syncline serve: how much a journal may "
      "grow before it begins again with a snapshot (default: 4)");
}

// Returns for example "How many checkpoints are kept (default: the program's, or 3)".
std::string HelpOf(const JobSetting& setting) {
  std::string help(setting.meaning);
  help[0] = absl::ascii_toupper(static_cast<unsigned char>(help[0]));
  const std::string standard = GetJobSetting(setting, {});
  return absl::StrCat(help, " (default: the program's",
                      standard.empty() ? "" : absl::StrCat(", or ", standard), ")");
}

void AddSettingFlags(CLI::App& command, RunOptions& options) {
  for (const JobSetting& setting : kJobSettings) {
    if (setting.said_by == SaidBy::kProgram) continue;
    CLI::Option* flag = command.add_option(
        FlagOf(setting), options.settings[std::string(setting.name)], HelpOf(setting));
    flag->each([&options, name = std::string(setting.name)](const std::string& value) {
      if (value.empty()) options.given_empty.insert(name);
    });
  }
}

void AddLogFlags(CLI::App& command, RunOptions& options) {
  command
      .add_option("-t,--tee", options.tee,
                  "Show and log: 1 stdout, 2 stderr, 3 both, or RANK:N,...")
      ->capture_default_str();
  command.add_option("-r,--redirects", options.redirects,
                     "Log only: as --tee (default: both streams of all ranks but 0)");
  command.add_option("--log-dir", options.log_dir,
                     "Where logs go (default: a temporary directory)");
}

}  // namespace

absl::StatusOr<int> RunProgram(RunOptions options,
                               const std::function<void(const std::string&)>& at_end) {
  for (const std::string& line : UnderstandTorchrun(options)) Launcher::Say(line);
  SYNCLINE_ASSIGN_OR_RETURN(const ProgramKind kind, KindOfProgram(options.program_flags));
  SYNCLINE_ASSIGN_OR_RETURN(options.program, ProgramCommand(options.program, kind));
  // Launchers on several nodes cannot agree on a random id, so they need --run-id.
  if (options.run_id.empty() && IsOneNode(options.nnodes)) options.run_id = RandomId();
  const bool asks_for_gpus =
      options.nproc_per_node == "gpu" || options.nproc_per_node == "auto";
  // Asks the driver, because the trainers may use another CUDA version than the module
  // does.
  const CudaDriver driver = asks_for_gpus ? ProbeCudaDriver() : CudaDriver{};
  const Machine machine = {DescribeMachine().cores, driver.device_count,
                           MemoryForJobs(ReadProcessLimits()), driver.message};
  SYNCLINE_ASSIGN_OR_RETURN(LaunchPlan plan, MakeLaunchPlan(options, machine));
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot find this program; is /proc mounted?");
  SYNCLINE_RETURN_IF_ERROR(GoOnFromJournal(options, Launcher::Say));
  Launcher launcher(options, std::move(plan), self.string());
  LocalRun announced;
  launcher.set_at_start([&](const std::string& coordinator) {
    announced = LocalRun(LocalRunsDirectory(), coordinator, options.job);
  });
  launcher.set_at_end(at_end);
  SYNCLINE_ASSIGN_OR_RETURN(const int code, launcher.Run());
  if (code != kExitDone) return code;
  // The job has succeeded even if this fails. The next run reports what it finds in the
  // journal.
  if (const absl::Status settled = SettleJournal(options); !settled.ok()) {
    Launcher::Say(absl::StrCat("the journal does not record that the job finished: ",
                               std::string(settled.message())));
  }
  return code;
}

void AddRunFlags(CLI::App& command, RunOptions& options) {
  command.add_option(
      "program", options.program,
      "Program of each worker, with its arguments; python3 runs a .py file");
  AddWorkerFlags(command, options);
  AddServiceFlags(command, options);
  AddDurabilityFlags(command, options);
  AddSettingFlags(command, options);
  AddTrainJobFlags(command, options);
  AddLogFlags(command, options);
  AddTorchrunFlags(command, options);
  AddTlsFlags(command, &options.tls);
}

void AddRun(CLI::App& app, Command* selected) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* run = app.add_subcommand(
      "run",
      "Run a program as the workers of a job, and start what it needs on this host");
  AddRunFlags(*run, *options);
  run->callback([=] { *selected = [options] { return RunProgram(*options, nullptr); }; });
}

}  // namespace syncline
