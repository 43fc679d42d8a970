#include "cli/torchrun.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

constexpr char kNoEffect[] = "torchrun options without effect here";
constexpr char kBackendFlag[] = "--rdzv-backend";
constexpr char kOwnBackend[] = "syncline";
// The default port of `syncline serve`.
constexpr char kCoordinatorPort[] = "7070";

struct NoEffect {
  const char* flag;
  const char* why;
};
// Each of these takes a value.
constexpr NoEffect kNoEffects[] = {
    {"--rdzv-conf",
     "Options of torch's rendezvous, which is not used; timeouts follow "
     "--failure-timeout"},
    {"--monitor-interval", "The end of a worker is seen at once"},
    {"--start-method", "Workers are programs of their own"},
    {"--event-log-handler", "syncline events, status and metrics show what happens"},
    {"--logs-specs", "--log-dir, --tee and --redirects say where logs go"},
    {"--numa-binding", "Run the whole command under numactl"},
    {"--signals-to-handle", "SIGINT, SIGTERM and SIGHUP end the run"},
    {"--duplicate-stdout-filters", "Lines are not filtered; --tee shows all"},
    {"--duplicate-stderr-filters", "Lines are not filtered; --tee shows all"}};

// "localhost:0" and "0.0.0.0:0" leave the place to the launcher.
bool NamesNoPlace(const std::string& endpoint) { return endpoint.ends_with(":0"); }

std::string WithPort(const std::string& endpoint) {
  const bool is_bare_v6 = endpoint.ends_with(']');
  const bool has_port = !is_bare_v6 && endpoint.find(':') != endpoint.npos;
  return has_port ? endpoint : absl::StrCat(endpoint, ":", kCoordinatorPort);
}

bool IsForeign(const std::string& backend) {
  return !backend.empty() && backend != kOwnBackend;
}

// Sets the coordinator, or returns why the endpoint is not used. Empty: there is nothing
// to say.
std::string UnderstandEndpoint(RunOptions& options) {
  const std::string& endpoint = options.rdzv_endpoint;
  const std::string unused =
      absl::StrCat("--rdzv-endpoint ", Printable(endpoint), " is not used: ");
  if (endpoint.empty() || endpoint == options.coordinator) return "";
  if (!options.coordinator.empty()) {
    return absl::StrCat(unused, "--coordinator (SYNCLINE_COORDINATOR) is ",
                        Printable(options.coordinator));
  }
  if (options.standalone) {
    return absl::StrCat(unused, "--standalone starts a coordinator here");
  }
  if (NamesNoPlace(endpoint)) return "";
  if (IsOneNode(options.nnodes) && IsForeign(options.rdzv_backend)) {
    return absl::StrCat(unused, "workers of one host meet at the coordinator ",
                        "started with them; give --coordinator to use a running one");
  }
  options.coordinator = WithPort(endpoint);
  return "";
}

}  // namespace

void AddTorchrunFlags(CLI::App& command, RunOptions& options) {
  RunOptions* given = &options;
  command.add_flag("-m,--module", given->program_flags.module,
                   "The program is a Python module");
  command.add_flag("--no-python", given->program_flags.no_python,
                   "Start the program as it is, also a .py file");
  command.add_flag("--run-path", given->program_flags.run_path,
                   "The program is a Python script, whatever its name");
  command.add_option("--rdzv-endpoint", given->rdzv_endpoint,
                     "HOST[:PORT] of a running coordinator, as --coordinator");
  command.add_option("--master-addr", given->master_addr,
                     "MASTER_ADDR of the workers (default: the coordinator's host)");
  command
      .add_option("--master-port", given->master_port,
                  "MASTER_PORT of the workers (default: one that is free, if the "
                  "coordinator is started here)")
      ->check(CLI::Range(0, 65535).description(""));
  command.add_option(
      "--local-addr", given->local_addr,
      "Address at which members of torch.distributed on other hosts reach this one");
  command.add_option("--role", given->role, "ROLE_NAME of the workers")
      ->capture_default_str();
  command.add_option("--local-ranks-filter", given->local_ranks_filter,
                     "Show the output of these workers of this host only: 0,1,2");
  command
      .add_option(kBackendFlag, given->rdzv_backend,
                  "Workers always meet at Syncline's coordinator")
      ->group(kNoEffect);
  for (const NoEffect& one : kNoEffects) {
    const std::string flag = one.flag;
    command
        .add_option_function<std::string>(
            flag,
            [given, flag](const std::string&) { given->without_effect.push_back(flag); },
            one.why)
        ->group(kNoEffect);
  }
  command
      .add_flag_callback(
          "--virtual-local-rank",
          [given] { given->without_effect.emplace_back("--virtual-local-rank"); },
          "LOCAL_RANK stays unchanged")
      ->group(kNoEffect);
}

std::vector<std::string> UnderstandTorchrun(RunOptions& options) {
  std::vector<std::string> lines;
  if (const std::string line = UnderstandEndpoint(options); !line.empty()) {
    lines.push_back(line);
  }
  std::vector<std::string> unused = options.without_effect;
  if (IsForeign(options.rdzv_backend)) unused.insert(unused.begin(), kBackendFlag);
  if (!unused.empty()) {
    lines.push_back(absl::StrCat(
        absl::StrJoin(unused, ", "),
        ": torchrun options without effect here (syncline run --help says why)"));
  }
  return lines;
}

}  // namespace syncline
