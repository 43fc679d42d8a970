#include "cli/bench/control.h"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/bench/control_load.h"
#include "cli/bench/figures.h"
#include "cli/launcher.h"
#include "cli/process.h"
#include "cli/scratch_folder.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/limits.h"
#include "comm/base/status.h"
#include "comm/base/timeouts.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

struct BenchOptions {
  ControlLoadOptions load;
  bool prints_json = false;
};

absl::Status Check(const ControlLoadOptions& load) {
  const auto require = [](bool holds, const std::string& what) {
    return holds ? absl::OkStatus()
                 : WithFailure(absl::InvalidArgumentError(what), Failure::kUsage);
  };
  const std::string& scenario = load.scenario;
  SYNCLINE_RETURN_IF_ERROR(
      require(scenario == "start" || scenario == "death" || scenario == "steady" ||
                  scenario == "tensors",
              absl::StrCat("--scenario must be start, death, steady or tensors, not '",
                           scenario, "'")));
  SYNCLINE_RETURN_IF_ERROR(require(load.workers >= 2 && load.workers <= kMaxWorkers,
                                   absl::StrCat("--workers must be 2 to ", kMaxWorkers)));
  SYNCLINE_RETURN_IF_ERROR(require(load.servers >= 1 && load.servers <= kMaxServers,
                                   absl::StrCat("--servers must be 1 to ", kMaxServers)));
  SYNCLINE_RETURN_IF_ERROR(
      require(load.shards >= 1 && load.shards <= kMaxEngineThreads,
              absl::StrCat("--shards must be 1 to ", kMaxEngineThreads)));
  SYNCLINE_RETURN_IF_ERROR(require(load.tensors >= 1, "--tensors must be at least 1"));
  SYNCLINE_RETURN_IF_ERROR(
      require(load.channels >= 1, "--connections must be at least 1"));
  SYNCLINE_RETURN_IF_ERROR(
      require(load.seconds > 0 && load.seconds <= 3600, "--seconds must be 0 to 3600"));
  const absl::Status timeout = Timeouts::Validate(absl::Seconds(load.failure_timeout));
  return require(timeout.ok(),
                 absl::StrCat("--failure-timeout: ", std::string(timeout.message())));
}

// The processes of one measurement, and the folder of their files.
class Processes {
 public:
  ~Processes() {
    std::error_code ignored;
    group_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  absl::StatusOr<Json> Run(ControlLoadOptions load);

 private:
  absl::Status Prepare();
  absl::StatusOr<std::string> StartCoordinator(const ControlLoadOptions& load);
  absl::Status RunLoad(const ControlLoadOptions& load);

  std::string self_;
  std::string folder_;
  std::unique_ptr<ProcessGroup> group_;
  // CPU seconds used by each process until each mark of the load: mark -> process ->
  // seconds.
  std::map<std::string, std::map<std::string, double>, std::less<>> used_at_;
};

absl::Status Processes::Prepare() {
  std::error_code error;
  self_ = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return absl::InternalError("cannot find this program; is /proc mounted?");
  SYNCLINE_ASSIGN_OR_RETURN(folder_, MakeScratchFolder("syncline-bench-"));
  SYNCLINE_ASSIGN_OR_RETURN(group_, ProcessGroup::Create());
  return absl::OkStatus();
}

absl::Status Ended(const ProcessEvent& event) {
  if (event.kind == ProcessEvent::kSignal) {
    return absl::CancelledError("the benchmark was interrupted");
  }
  return absl::InternalError(
      absl::StrCat("the ", event.name, " ended with ", DescribeExit(event.wait_status),
                   event.tail.empty() ? "" : ": " + event.tail.back()));
}

absl::StatusOr<std::string> Processes::StartCoordinator(const ControlLoadOptions& load) {
  ReadyLine ready;
  ProcessSpec spec = {
      .name = "coordinator",
      .argv = {self_, "serve", "--role", "coordinator", "--listen", "127.0.0.1:0",
               "--admin-listen", "127.0.0.1:0", "--state-dir", folder_ + "/state",
               "--servers", absl::StrCat(load.servers), "--failure-timeout",
               absl::StrCat(load.failure_timeout, "s")},
      .env = {},
      .out = Output::kLog,
      .err = Output::kLog,
      .log_path = folder_ + "/coordinator.log",
      .on_line = [&ready](std::string_view line) {
        if (auto found = ParseReadyLine(line)) ready = *std::move(found);
      }};
  SYNCLINE_RETURN_IF_ERROR(group_->Start(spec));
  while (ready.control.empty()) {
    const ProcessEvent event = group_->Next(absl::InfiniteFuture());
    if (event.kind == ProcessEvent::kOutput) continue;
    return Ended(event);
  }
  return ready.control;
}

absl::Status Processes::RunLoad(const ControlLoadOptions& load) {
  const ProcessSpec spec = {
      .name = "members",
      .argv = {self_, "bench", "control-load", "--coordinator", load.coordinator,
               "--scenario", load.scenario, absl::StrCat("--workers=", load.workers),
               absl::StrCat("--servers=", load.servers),
               absl::StrCat("--shards=", load.shards),
               absl::StrCat("--tensors=", load.tensors),
               absl::StrCat("--connections=", load.channels),
               absl::StrCat("--seconds=", load.seconds),
               absl::StrCat("--failure-timeout=", load.failure_timeout), "--report",
               load.report},
      .env = {},
      .out = Output::kLog,
      .err = Output::kLog,
      .log_path = folder_ + "/members.log",
      .on_line = [this](std::string_view line) {
        if (line != kScenarioBegins && line != kScenarioEnds) return;
        for (const char* name : {"coordinator", "members"}) {
          const std::optional<double> used = group_->CpuSeconds(name);
          if (used) used_at_[std::string(line)][name] = *used;
        }
      }};
  SYNCLINE_RETURN_IF_ERROR(group_->Start(spec));
  for (;;) {
    const ProcessEvent event = group_->Next(absl::InfiniteFuture());
    if (event.kind == ProcessEvent::kOutput || event.kind == ProcessEvent::kTimeout) {
      continue;
    }
    const bool is_done = event.kind == ProcessEvent::kExit && event.name == "members" &&
                         WIFEXITED(event.wait_status) &&
                         WEXITSTATUS(event.wait_status) == kExitDone;
    return is_done ? absl::OkStatus() : Ended(event);
  }
}

absl::StatusOr<Json> Processes::Run(ControlLoadOptions load) {
  SYNCLINE_RETURN_IF_ERROR(Prepare());
  const bool starts_coordinator = load.coordinator.empty();
  if (starts_coordinator) {
    SYNCLINE_ASSIGN_OR_RETURN(load.coordinator, StartCoordinator(load));
  }
  load.report = folder_ + "/report.json";
  SYNCLINE_RETURN_IF_ERROR(RunLoad(load));
  if (starts_coordinator) {
    group_->Stop("coordinator", absl::Seconds(10));
    while (group_->IsRunning("coordinator")) group_->Next(absl::InfiniteFuture());
  }
  Json report = Json::parse(std::ifstream(load.report), nullptr, false);
  if (report.is_discarded()) return absl::InternalError("the members left no report");
  report["processes"] = Json::array();
  for (const auto& [name, used] : group_->usage()) {
    report["processes"].push_back({{"name", name},
                                   {"cpu_seconds", used.cpu_seconds},
                                   {"peak_rss_bytes", used.peak_rss_bytes}});
    auto& ends = used_at_[std::string(kScenarioEnds)];
    if (!ends.contains(name)) continue;
    report["processes"].back()["scenario_cpu_seconds"] =
        ends[name] - used_at_[std::string(kScenarioBegins)][name];
  }
  return report;
}

void PrintTraffic(const char* what, const Json& traffic) {
  std::printf("  %-9s %10llu messages %12.3f MB\n", what,
              traffic["messages"].get<unsigned long long>(),
              traffic["bytes"].get<double>() / 1e6);
  for (const auto& [name, kind] : traffic["kinds"].items()) {
    std::printf("    %-20s %9llu %21.3f MB\n", name.c_str(),
                kind["messages"].get<unsigned long long>(),
                kind["bytes"].get<double>() / 1e6);
  }
}

void Print(const Json& report) {
  const Json& settings = report["settings"];
  const Json& answer = report["answer_seconds"];
  std::printf("%s of %u workers and %u servers on one coordinator\n",
              settings["scenario"].get<std::string>().c_str(),
              settings["workers"].get<unsigned>(), settings["servers"].get<unsigned>());
  std::printf("  begins in %.3f s, the scenario took %.3f s\n",
              report["begin_seconds"].get<double>(), report["seconds"].get<double>());
  std::printf("  beats     %.0f a second of %.0f that are promised\n",
              report["beats_per_second"].get<double>(),
              report["promised_beats_per_second"].get<double>());
  std::printf("  lost      %u members\n", report["lost"].get<unsigned>());
  for (const Json& reason : report["reasons"]) {
    std::printf("            %s\n", reason.get<std::string>().c_str());
  }
  std::printf("  answers   in %.2f ms median, %.2f ms p90, %.2f ms at the longest\n",
              answer["median"].get<double>() * 1e3, answer["p90"].get<double>() * 1e3,
              answer["max"].get<double>() * 1e3);
  PrintTraffic("said", report["sent"]);
  PrintTraffic("heard", report["received"]);
  for (const Json& process : report["processes"]) {
    const double used = process.value("scenario_cpu_seconds", 0.0);
    std::printf(
        "  %-12s%6.2f s CPU in the scenario (%.2f cores), %.2f s in all, "
        "peak %.0f MiB\n",
        process["name"].get<std::string>().c_str(), used,
        used / report["seconds"].get<double>(), process["cpu_seconds"].get<double>(),
        process["peak_rss_bytes"].get<double>() / (1 << 20));
  }
}

absl::StatusOr<int> BenchControl(const BenchOptions& options) {
  const ControlLoadOptions& load = options.load;
  SYNCLINE_RETURN_IF_ERROR(Check(load));
  SYNCLINE_ASSIGN_OR_RETURN(Json report, Processes().Run(load));
  report["bench"] = "control";
  report["machine"] = MachineFigures();
  report["settings"] = {{"scenario", load.scenario},
                        {"workers", load.workers},
                        {"servers", load.servers},
                        {"shards", load.shards},
                        {"tensors", load.tensors},
                        {"connections", load.channels},
                        {"failure_timeout_seconds", load.failure_timeout}};
  if (options.prints_json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    Print(report);
  }
  return kExitDone;
}

absl::StatusOr<int> WriteLoadReport(ControlLoadOptions load) {
  load.on_mark = [](std::string_view what) {
    std::printf("%.*s\n", static_cast<int>(what.size()), what.data());
    std::fflush(stdout);
  };
  SYNCLINE_ASSIGN_OR_RETURN(const Json report, RunControlLoad(load));
  std::ofstream file(load.report);
  file << report;
  file.close();
  if (!file) return absl::InternalError(absl::StrCat("cannot write ", load.report));
  return kExitDone;
}

void AddLoadFlags(CLI::App& app, ControlLoadOptions& load) {
  app.add_option("--scenario", load.scenario,
                 "start: all members join at once; death: a tenth of them dies at once; "
                 "steady: heartbeats only; tensors: a job with 100,000 tensors joins")
      ->capture_default_str();
  app.add_option("--workers", load.workers, "Workers of the job")->capture_default_str();
  app.add_option("--servers", load.servers, "Servers")->capture_default_str();
  app.add_option("--shards", load.shards, "Engine threads of each server")
      ->capture_default_str();
  app.add_option("--tensors", load.tensors, "Tensors of the job")->capture_default_str();
  app.add_option("--connections", load.channels, "Connections that the members share")
      ->capture_default_str();
  app.add_option("--seconds", load.seconds, "Duration of the scenario steady")
      ->capture_default_str();
  app.add_option("--failure-timeout", load.failure_timeout, "Failure timeout in seconds")
      ->capture_default_str();
  app.add_option(
      "--coordinator", load.coordinator,
      "HOST:PORT of a running coordinator without TLS to measure (default: start one)");
}

}  // namespace

void AddBenchControl(CLI::App& bench, Command* selected) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* app =
      bench.add_subcommand("control", "How many members a coordinator can serve");
  AddLoadFlags(*app, options->load);
  app->add_flag("--json", options->prints_json, "Print JSON");
  app->callback(
      [options, selected] { *selected = [options] { return BenchControl(*options); }; });

  CLI::App* load = bench.add_subcommand("control-load", "The members of control");
  load->group("");
  AddLoadFlags(*load, options->load);
  load->add_option("--report", options->load.report, "File for the report");
  load->callback([options, selected] {
    *selected = [options] { return WriteLoadReport(options->load); };
  });
}

}  // namespace syncline
