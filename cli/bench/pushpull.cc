#include "cli/bench/pushpull.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/figures.h"
#include "cli/bench/worker.h"
#include "cli/launch_plan.h"
#include "cli/launcher.h"
#include "cli/scratch_folder.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/machine.h"
#include "comm/base/process_limits.h"
#include "comm/base/status.h"
#include "comm/compression/transfer.h"
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

absl::Status Refused(const std::string& why) {
  return WithFailure(absl::InvalidArgumentError(why), Failure::kUsage);
}

// More tensors take minutes per step and show nothing new.
constexpr uint64_t kMaxTensors = 4096;

absl::Status CheckTensors(const BenchWorkerOptions& worker) {
  if (worker.bytes < 4 || worker.bytes % 4 != 0) {
    return Refused("--bytes must be a positive multiple of 4 (FP32 elements)");
  }
  if (worker.tensor_bytes < 4 || worker.tensor_bytes % 4 != 0) {
    return Refused("--tensor-bytes must be a positive multiple of 4 (FP32 elements)");
  }
  const uint64_t tensors = 1 + (worker.bytes - 1) / worker.tensor_bytes;
  if (tensors <= kMaxTensors) return absl::OkStatus();
  const uint64_t least = 4 * (1 + (worker.bytes - 1) / (4 * kMaxTensors));
  return Refused(absl::StrCat(
      "--bytes ", worker.bytes, " in tensors of --tensor-bytes ", worker.tensor_bytes,
      " are ", tensors, " tensors, more than ", kMaxTensors, ": give --tensor-bytes ",
      least, " or more, or fewer --bytes"));
}

// Estimates the memory: weights and gradients on each worker; master weights, AdamW's
// state, a view and the gradients of a step on the servers.
absl::Status CheckMemory(const BenchOptions& options, std::optional<uint64_t> left) {
  const double copies = 4.0 + 3.0 * options.workers;
  const double needed = copies * static_cast<double>(options.worker.bytes);
  if (!left || needed <= static_cast<double>(*left)) return absl::OkStatus();
  return Refused(absl::StrFormat(
      "--bytes %d with %d workers takes about %.1f GB, and %.1f GB are left: at most "
      "--bytes %.0f",
      options.worker.bytes, options.workers, needed / 1e9,
      static_cast<double>(*left) / 1e9,
      4 * std::floor(static_cast<double>(*left) / copies / 4)));
}

absl::Status CheckNames(const BenchWorkerOptions& worker) {
  SYNCLINE_RETURN_IF_ERROR(BenchDType(worker.dtype).status());
  if (worker.optimizer != "sgd" && worker.optimizer != "adamw") {
    return Refused(absl::StrCat("--optimizer '", worker.optimizer,
                                "' is not checked by this benchmark: sgd or adamw; "
                                "`syncline bench optimizer` times all of them"));
  }
  const absl::Status codec = ParseTransfers(worker.codec, worker.codec, {}).status();
  return codec.ok() ? codec
                    : Refused(absl::StrCat("--codec: ", std::string(codec.message())));
}

absl::Status Check(const BenchOptions& options) {
  const auto require = [](bool holds, const char* what) {
    return holds ? absl::OkStatus() : Refused(what);
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
  SYNCLINE_RETURN_IF_ERROR(CheckNames(options.worker));
  SYNCLINE_RETURN_IF_ERROR(CheckTensors(options.worker));
  return CheckMemory(options, ReadProcessLimits().memory_bytes);
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
          // FP32 bytes of gradients that each worker pushes per second. It receives as
          // many bytes of weights in addition.
          {"goodput_gbs", bytes / seconds["median"].get<double>() / 1e9},
          {"cpu_seconds", cpu_seconds},
          {"processes", processes},
          {"bytes_pushed", measured["bytes_pushed"]},
          {"bytes_pulled", measured["bytes_pulled"]},
          {"checked", measured["checked"]}};
}

std::string DescribeChecked(const std::string& checked) {
  if (checked == "weights") return "all weights are what the gradients make of them";
  if (checked == "sums")
    return "weights follow the gradients; what the codec leaves out arrives later, "
           "exactly";
  return "weights follow the gradients; this codec promises no sum to compare with";
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
  std::printf("  checked    %s\n",
              DescribeChecked(report["checked"].get<std::string>()).c_str());
  for (const Json& process : report["processes"]) {
    std::printf("  %-12s%6.2f s CPU, peak %.0f MiB\n",
                process["name"].get<std::string>().c_str(),
                process["cpu_seconds"].get<double>(),
                process["peak_rss_bytes"].get<double>() / (1 << 20));
  }
}

// Returns null if a signal interrupted the run; `code` is then its exit code.
absl::StatusOr<Json> Measure(BenchOptions options, int& code) {
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot find this program; is /proc mounted?");
  SYNCLINE_ASSIGN_OR_RETURN(const std::string folder,
                            MakeScratchFolder("syncline-bench-"));
  options.worker.report = folder + "/report.json";
  RunOptions run;
  run.program = WorkerCommand(self.string(), options.worker);
  run.workers = options.workers;
  run.servers = options.servers;
  run.nproc_per_node = absl::StrCat(options.workers);
  run.standalone = true;
  run.job = "bench";
  run.engine_threads = options.engine_threads;
  run.advises = false;
  SYNCLINE_ASSIGN_OR_RETURN(LaunchPlan plan,
                            MakeLaunchPlan(run, {.cores = DescribeMachine().cores}));
  Launcher launcher(run, std::move(plan), self.string());
  const absl::StatusOr<int> ended = launcher.Run();
  const Json measured = Json::parse(std::ifstream(options.worker.report), nullptr, false);
  std::filesystem::remove_all(folder, error);
  SYNCLINE_ASSIGN_OR_RETURN(code, ended);
  if (code != kExitDone) return Json();
  if (measured.is_discarded()) return absl::InternalError("worker 0 left no report");
  return Report(options, measured, launcher.usage());
}

absl::StatusOr<int> BenchPushPull(const BenchOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(Check(options));
  int code = kExitDone;
  SYNCLINE_ASSIGN_OR_RETURN(const Json report, Measure(options, code));
  if (report.is_null()) {
    Launcher::Say("bench pushpull was interrupted: it has no results");
    return code;
  }
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
  app.add_option("--warmup", worker.warmup, "Steps before those, which are not timed")
      ->capture_default_str();
  app.add_option("--codec", worker.codec,
                 "Codec of both directions: fp32, int8, topk:ratio=0.01, ...")
      ->capture_default_str();
  app.add_option("--optimizer", worker.optimizer, "sgd or adamw")->capture_default_str();
  app.add_option("--dtype", worker.dtype,
                 "Type of the program's gradients and weights: fp32, bf16 or fp16")
      ->capture_default_str();
  app.add_flag(
      "--lend,!--no-lend", worker.lends,
      "Keep gradients in memory that servers read in place (Session::AllocateTensor)");
  app.add_flag("--gpu,!--no-gpu", worker.on_gpu,
               "Keep weights and gradients in the memory of CUDA device 0, which encodes "
               "and decodes");
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
  worker->add_option("--report", options->worker.report, "File for rank 0's report");
  worker->callback([options, selected] {
    *selected = [options]() -> absl::StatusOr<int> {
      SYNCLINE_RETURN_IF_ERROR(RunBenchWorker(options->worker));
      return kExitDone;
    };
  });
}

}  // namespace syncline
