#include "cli/bench/pushpull.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/figures.h"
#include "cli/bench/worker.h"
#include "cli/launch_plan.h"
#include "cli/launcher.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/machine.h"
#include "comm/base/status.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

struct BenchOptions {
  int workers = 2;
  int servers = 1;
  int engine_threads = 0;
  bool prints_json = false;
  BenchWorkerOptions worker = {.bytes = 256u << 20, .tensor_bytes = 16u << 20};
};

absl::Status Check(const BenchOptions& options) {
  const auto require = [](bool holds, const char* what) {
    return holds ? absl::OkStatus()
                 : WithFailure(absl::InvalidArgumentError(what), Failure::kUsage);
  };
  SYNCLINE_RETURN_IF_ERROR(require(options.workers >= 1, "--workers must be at least 1"));
  SYNCLINE_RETURN_IF_ERROR(require(options.servers >= 1, "--servers must be at least 1"));
  SYNCLINE_RETURN_IF_ERROR(
      require(options.worker.steps >= 1, "--steps must be at least 1"));
  SYNCLINE_RETURN_IF_ERROR(
      require(options.worker.warmup >= 0, "--warmup must not be negative"));
  SYNCLINE_RETURN_IF_ERROR(require(!options.worker.lends || !options.worker.on_gpu,
                                   "--lend and --gpu exclude each other: servers read no "
                                   "memory of a GPU"));
  SYNCLINE_RETURN_IF_ERROR(BenchDType(options.worker.dtype).status());
  SYNCLINE_RETURN_IF_ERROR(
      require(options.worker.bytes >= 4 && options.worker.bytes % 4 == 0,
              "--bytes must be a positive multiple of 4 (FP32 elements)"));
  return require(options.worker.tensor_bytes >= 4, "--tensor-bytes must be at least 4");
}

std::vector<std::string> WorkerCommand(const std::string& self,
                                       const BenchWorkerOptions& worker) {
  return {self,
          "bench",
          "pushpull-worker",
          absl::StrCat("--bytes=", worker.bytes),
          absl::StrCat("--tensor-bytes=", worker.tensor_bytes),
          absl::StrCat("--warmup=", worker.warmup),
          absl::StrCat("--steps=", worker.steps),
          absl::StrCat("--codec=", worker.codec),
          absl::StrCat("--optimizer=", worker.optimizer),
          absl::StrCat("--dtype=", worker.dtype),
          worker.lends ? "--lend" : "--no-lend",
          worker.on_gpu ? "--gpu" : "--no-gpu",
          absl::StrCat("--report=", worker.report)};
}

Json Report(const BenchOptions& options, const Json& measured,
            const std::map<std::string, ProcessUsage>& usage) {
  const Json seconds = Quantiles(measured["seconds"].get<std::vector<double>>());
  Json processes = Json::array();
  double cpu_seconds = 0;
  for (const auto& [name, used] : usage) {
    processes.push_back({{"name", name},
                         {"cpu_seconds", used.cpu_seconds},
                         {"peak_rss_bytes", used.peak_rss_bytes}});
    cpu_seconds += used.cpu_seconds;
  }
  const double bytes = static_cast<double>(options.worker.bytes);
  return {{"bench", "pushpull"},
          {"machine", MachineFigures()},
          {"settings",
           {{"workers", options.workers},
            {"servers", options.servers},
            {"engine_threads", options.engine_threads},
            {"bytes", options.worker.bytes},
            {"tensor_bytes", options.worker.tensor_bytes},
            {"codec", options.worker.codec},
            {"optimizer", options.worker.optimizer},
            {"dtype", options.worker.dtype},
            {"lends", options.worker.lends},
            {"gpu", options.worker.on_gpu},
            {"warmup", options.worker.warmup},
            {"steps", options.worker.steps}}},
          {"seconds", seconds},
          // FP32 gradient bytes that each worker exchanges per second; the weights come
          // back beside.
          {"goodput_gbs", bytes / seconds["median"].get<double>() / 1e9},
          {"cpu_seconds", cpu_seconds},
          {"processes", processes},
          {"bytes_pushed", measured["bytes_pushed"]},
          {"bytes_pulled", measured["bytes_pulled"]}};
}

void Print(const Json& report) {
  const Json& seconds = report["seconds"];
  const Json& settings = report["settings"];
  std::printf(
      "push-pull of %.6g MiB FP32 by %d workers and %d servers (%s in the program%s, %s "
      "on "
      "the wire, %s)\n",
      settings["bytes"].get<double>() / (1 << 20), settings["workers"].get<int>(),
      settings["servers"].get<int>(), settings["dtype"].get<std::string>().c_str(),
      settings["lends"].get<bool>() ? ", gradients lent"
      : settings["gpu"].get<bool>() ? ", on a GPU"
                                    : "",
      settings["codec"].get<std::string>().c_str(),
      settings["optimizer"].get<std::string>().c_str());
  std::printf("  per step   %.3f ms median, %.3f ms p10, %.3f ms p90\n",
              seconds["median"].get<double>() * 1e3, seconds["p10"].get<double>() * 1e3,
              seconds["p90"].get<double>() * 1e3);
  std::printf("  goodput    %.2f GB/s per worker (this machine copies %.1f GB/s)\n",
              report["goodput_gbs"].get<double>(),
              report["machine"]["copy_gbs"].get<double>());
  for (const Json& process : report["processes"]) {
    std::printf("  %-12s%6.2f s CPU, peak %.0f MiB\n",
                process["name"].get<std::string>().c_str(),
                process["cpu_seconds"].get<double>(),
                process["peak_rss_bytes"].get<double>() / (1 << 20));
  }
}

absl::StatusOr<Json> Measure(BenchOptions options) {
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot find this program; is /proc mounted?");
  std::string pattern =
      (std::filesystem::temp_directory_path(error) / "syncline-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat("cannot make a directory ", pattern,
                                                    "; set TMPDIR to a writable one"));
  }
  options.worker.report = pattern + "/report.json";
  RunOptions run;
  run.program = WorkerCommand(self.string(), options.worker);
  run.workers = options.workers;
  run.servers = options.servers;
  run.nproc_per_node = absl::StrCat(options.workers);
  run.standalone = true;
  run.job = "bench";
  run.engine_threads = options.engine_threads;
  SYNCLINE_ASSIGN_OR_RETURN(LaunchPlan plan,
                            MakeLaunchPlan(run, {.cores = DescribeMachine().cores}));
  Launcher launcher(run, std::move(plan), self.string());
  const absl::StatusOr<int> code = launcher.Run();
  const Json measured = Json::parse(std::ifstream(options.worker.report), nullptr, false);
  std::filesystem::remove_all(pattern, error);
  SYNCLINE_RETURN_IF_ERROR(code.status());
  if (*code != kExitDone) return absl::CancelledError("the benchmark was interrupted");
  if (measured.is_discarded()) return absl::InternalError("worker 0 left no report");
  return Report(options, measured, launcher.usage());
}

absl::StatusOr<int> BenchPushPull(const BenchOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(Check(options));
  SYNCLINE_ASSIGN_OR_RETURN(const Json report, Measure(options));
  if (options.prints_json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    Print(report);
  }
  return kExitDone;
}

void AddWorkerFlags(CLI::App& app, BenchWorkerOptions& worker) {
  app.add_option("--bytes", worker.bytes, "FP32 bytes of the whole model")
      ->capture_default_str();
  app.add_option("--tensor-bytes", worker.tensor_bytes, "FP32 bytes of each tensor")
      ->capture_default_str();
  app.add_option("--steps", worker.steps, "Steps that are timed")->capture_default_str();
  app.add_option("--warmup", worker.warmup, "Steps before that")->capture_default_str();
  app.add_option("--codec", worker.codec,
                 "On the wire, both ways: fp32, int8, topk:ratio=0.01, ...")
      ->capture_default_str();
  app.add_option("--optimizer", worker.optimizer, "sgd or adamw")->capture_default_str();
  app.add_option("--dtype", worker.dtype,
                 "Of the program's gradients and weights: fp32, bf16 or fp16")
      ->capture_default_str();
  app.add_flag("--lend,!--no-lend", worker.lends,
               "Gradients in memory that servers read where it lies "
               "(Session::AllocateTensor)");
  app.add_flag("--gpu,!--no-gpu", worker.on_gpu,
               "Weights and gradients in the memory of CUDA device 0, which encodes and "
               "decodes");
}

}  // namespace

void AddBenchPushPull(CLI::App& bench, Command* selected) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* app = bench.add_subcommand("pushpull", "Time of one step of push and pull");
  app->add_option("--workers", options->workers, "Worker processes")
      ->capture_default_str();
  app->add_option("--servers", options->servers, "Server processes")
      ->capture_default_str();
  app->add_option("--engine-threads", options->engine_threads,
                  "Engine threads of each server (0: the server's default)")
      ->capture_default_str();
  app->add_flag("--json", options->prints_json, "Print JSON");
  AddWorkerFlags(*app, options->worker);
  app->callback(
      [options, selected] { *selected = [options] { return BenchPushPull(*options); }; });

  CLI::App* worker =
      bench.add_subcommand("pushpull-worker", "One worker of pushpull")->group("");
  AddWorkerFlags(*worker, options->worker);
  worker->add_option("--report", options->worker.report,
                     "Where rank 0 writes its figures");
  worker->callback([options, selected] {
    *selected = [options]() -> absl::StatusOr<int> {
      SYNCLINE_RETURN_IF_ERROR(RunBenchWorker(options->worker));
      return kExitDone;
    };
  });
}

}  // namespace syncline
