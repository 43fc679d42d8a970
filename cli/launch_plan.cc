#include "cli/launch_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/checkpoint_store.h"
#include "cli/flags.h"
#include "cli/launch_answers.h"
#include "comm/base/check.h"
#include "comm/base/failure.h"
#include "comm/base/limits.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/base/sync_mode.h"
#include "comm/base/timeouts.h"
#include "comm/job/durability.h"
#include "comm/job/job_settings.h"
#include "server/journal/journal.h"

namespace syncline {
namespace {

// The streams of a set, as bits. torchrun's Std has the same values.
constexpr int kStdout = 1;
constexpr int kStderr = 2;
constexpr int kBoth = kStdout | kStderr;

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// A set of streams for each rank: "3" for all ranks, or "0:1,2:3" for some.
class StreamsOfRank {
 public:
  static absl::StatusOr<StreamsOfRank> Parse(const std::string& flag,
                                             const std::string& text) {
    StreamsOfRank result;
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      const std::vector<absl::string_view> pair = absl::StrSplit(part, ':');
      int rank = kEveryRank;
      int streams = 0;
      const bool ok = pair.size() <= 2 && absl::SimpleAtoi(pair.back(), &streams) &&
                      streams >= 0 && streams <= kBoth &&
                      (pair.size() == 1 || absl::SimpleAtoi(pair.front(), &rank));
      if (!ok) {
        return Usage(
            absl::StrCat(flag, " '", text,
                         "' is not understood; write 0 (none), 1 (stdout), 2 (stderr) or "
                         "3 (both), or RANK:STREAMS,..."));
      }
      result.streams_[rank] = streams;
    }
    return result;
  }

  int Of(int rank) const {
    for (const int key : {rank, kEveryRank}) {
      if (const auto found = streams_.find(key); found != streams_.end())
        return found->second;
    }
    return 0;
  }

 private:
  static constexpr int kEveryRank = -1;
  std::map<int, int> streams_;
};

// The local ranks whose output is shown, such as "0,2". Without a list, the output of
// every rank goes where it was planned.
class RanksFilter {
 public:
  // `of_logged`: where output of listed ranks goes if it was planned for the log only.
  static absl::StatusOr<RanksFilter> Parse(const std::string& text, int workers,
                                           Output of_logged) {
    RanksFilter filter;
    filter.of_logged_ = of_logged;
    if (text.empty()) return filter;
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      int rank = 0;
      if (!absl::SimpleAtoi(part, &rank) || rank < 0) {
        return Usage(
            absl::StrCat("--local-ranks-filter '", Printable(text),
                         "' is not a list of workers of this host; write 0,1,2"));
      }
      if (rank >= workers) {
        return Usage(absl::StrCat("--local-ranks-filter ", Printable(text),
                                  ": this host has no worker ", rank, ", only 0 to ",
                                  workers - 1));
      }
      filter.ranks_.insert(rank);
    }
    return filter;
  }

  Output Of(int local, Output planned) const {
    if (ranks_.empty()) return planned;
    if (!ranks_.contains(local)) return Output::kLog;
    return planned == Output::kLog ? of_logged_ : planned;
  }

 private:
  std::set<int> ranks_;
  Output of_logged_ = Output::kTee;
};

struct Nodes {
  int least = 1;
  int most = 1;
};

// Parses "4" or "MIN:MAX". The launcher plans for MAX.
absl::StatusOr<Nodes> ParseNodes(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  Nodes nodes;
  const bool are_numbers = parts.size() <= 2 &&
                           absl::SimpleAtoi(parts.back(), &nodes.most) &&
                           absl::SimpleAtoi(parts.front(), &nodes.least);
  if (!are_numbers || nodes.least < 1 || nodes.most < nodes.least) {
    return Usage(absl::StrCat("--nnodes '", text,
                              "' is not a number of hosts; write N or MIN:MAX"));
  }
  return nodes;
}

absl::StatusOr<int> ParseLocalSize(const std::string& text, const Machine& machine) {
  int count = 0;
  if (absl::SimpleAtoi(text, &count) && count > 0) return count;
  if (text == "cpu") return machine.cores;
  if (text == "gpu" && machine.gpus > 0) return machine.gpus;
  if (text == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (text == "gpu") {
    return Usage(absl::StrCat("--nproc-per-node gpu: this host has no usable GPU: ",
                              machine.about_gpus, "; see syncline doctor"));
  }
  return Usage(absl::StrCat("--nproc-per-node '", text,
                            "' is not understood; write a number from 1, ",
                            "auto, cpu or gpu"));
}

struct Sizes {
  int world = 1;
  int local = 1;
  int least = 1;  // minimum for the whole job, on as few hosts as --nnodes allows
};

absl::StatusOr<Sizes> WorkOutSizes(const RunOptions& options, const Machine& machine) {
  SYNCLINE_ASSIGN_OR_RETURN(const Nodes range, ParseNodes(options.nnodes));
  const int nodes = range.most;
  if (options.workers < 0) return Usage("--workers must be at least 1");
  Sizes sizes;
  if (!options.nproc_per_node.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(sizes.local,
                              ParseLocalSize(options.nproc_per_node, machine));
  } else if (options.workers > 0) {
    sizes.local = options.workers / nodes;
  }
  sizes.world = sizes.local * nodes;
  sizes.least = sizes.local * range.least;
  if (options.workers > 0 && options.workers != sizes.world) {
    return Usage(absl::StrCat(
        "--workers ", options.workers, " is not ", sizes.local, " on each of ", nodes,
        " nodes; drop --nproc-per-node, or give a ", "multiple of --nnodes"));
  }
  if (sizes.world > static_cast<int>(kMaxWorkers)) {
    return Usage(absl::StrCat("a job has at most ", kMaxWorkers, " workers"));
  }
  if (options.node_rank < 0 || options.node_rank >= nodes) {
    return Usage(absl::StrCat("--node-rank ", options.node_rank,
                              " is not below --nnodes ", nodes));
  }
  if (nodes > 1 && options.coordinator.empty()) {
    return Usage(
        "several nodes need a coordinator that all can reach: start 'syncline serve' and "
        "give its address as --coordinator on each node");
  }
  return sizes;
}

absl::Status CheckMode(const RunOptions& options, const Sizes& sizes) {
  if (options.mode.empty()) return absl::OkStatus();
  const std::string flag = absl::StrCat("--mode '", Printable(options.mode), "': ");
  const absl::StatusOr<NamedOptions> named = ParseModeText(options.mode);
  const auto parsed = named.ok() ? ParseSyncMode(*named) : named.status();
  if (!parsed.ok()) {
    return Usage(absl::StrCat(flag, std::string(parsed.status().message())));
  }
  // Each worker would fail in the same way, but only after everything was started.
  const bool makes_hosts = options.local_aggregation && sizes.local > 1;
  const absl::Status fits =
      makes_hosts ? CheckLocalAggregation(*named) : absl::OkStatus();
  if (!fits.ok()) {
    return Usage(
        absl::StrCat(flag, "with --local-aggregation: ", std::string(fits.message())));
  }
  if (parsed->is_whole || parsed->quorum <= static_cast<uint64_t>(sizes.world)) {
    return absl::OkStatus();
  }
  return Usage(absl::StrCat(flag, "the quorum is ", parsed->quorum, ", allowed are 1 to ",
                            sizes.world, ", the job's workers"));
}

absl::Status CheckSettings(const RunOptions& options) {
  JobSettings settings;
  for (const JobSetting& setting : kJobSettings) {
    const std::string name(setting.name);
    const std::string value = options.Setting(setting.name);
    // A shell variable that is unset must not remove these settings.
    const bool may_be_none = setting.canonical != nullptr;
    if (may_be_none && options.given_empty.contains(name)) {
      return Usage(absl::StrCat(FlagOf(setting), " is empty; write none for no ", name));
    }
    // AnswersFor checks the answers, together with --min-workers.
    if (value.empty() || name == "answers") continue;
    const absl::Status fits = SetJobSetting(setting, value, settings);
    if (fits.ok()) continue;
    absl::string_view why = fits.message();  // it may begin with the setting's name
    absl::ConsumePrefix(&why, absl::StrCat(std::string(setting.name), ": "));
    return Usage(absl::StrCat(FlagOf(setting), ": ", why));
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoints(const RunOptions& options) {
  const bool saves = !options.Setting("checkpoint_every").empty() ||
                     !options.Setting("checkpoint_keep").empty();
  const std::string resume = options.Setting("resume");
  const bool resumes = !resume.empty() && resume != "never";
  if (options.coordinator.empty() && options.checkpoint_dir.empty() &&
      (saves || resumes)) {
    return Usage(
        "checkpoints need a place: give --checkpoint-dir, a directory that outlives the "
        "run, or s3://BUCKET/PREFIX");
  }
  if (!options.coordinator.empty() && !options.checkpoint_dir.empty() &&
      options.servers <= 0) {
    return Usage(
        "--checkpoint-dir is for services that are started here; the coordinator and its "
        "servers have their own (syncline serve --checkpoint-dir)");
  }
  return CheckCheckpointStore(options.checkpoint_dir);
}

absl::Status CheckDurability(const RunOptions& options) {
  const Durability durability =
      ParseDurability(options.Setting("durability")).value_or(Durability::kNone);
  if (HasJournals(durability) && options.coordinator.empty() &&
      options.journal_dir.empty()) {
    return Usage(
        "a journal needs a place: give --journal-dir, a directory that outlives the run");
  }
  if (HasBackups(durability) && options.coordinator.empty() && options.servers < 2 &&
      options.servers != 0) {
    return Usage(absl::StrCat("with --durability ",
                              std::string(DurabilityName(durability)),
                              " servers hold each other's backups: start two or more "
                              "(--servers 2)"));
  }
  if (!options.journal_dir.empty() && !options.coordinator.empty() &&
      options.servers <= 0) {
    return Usage(
        "--journal-dir is for services that are started here; servers elsewhere have "
        "their own (syncline serve --journal-dir)");
  }
  if (!options.journal_snapshot_factor) return absl::OkStatus();
  if (options.journal_dir.empty()) {
    return Usage("--journal-snapshot-factor needs --journal-dir");
  }
  const absl::Status factor = CheckSnapshotFactor(*options.journal_snapshot_factor);
  return factor.ok() ? factor
                     : Usage(absl::StrCat("--journal-snapshot-factor ",
                                          std::string(factor.message())));
}

absl::Status CheckDataPlane(const RunOptions& options) {
  const std::string& mode = options.data_plane;
  if (mode.empty()) return absl::OkStatus();
  if (mode == "rdma") {
    return Usage(
        "--data-plane rdma is for servers on other hosts: start them there with "
        "`syncline serve --data-plane rdma`");
  }
  if (mode != "auto" && mode != "tls" && mode != "plain") {
    return Usage(
        absl::StrCat("--data-plane is auto, tls or plain, not '", Printable(mode), "'"));
  }
  if (!options.coordinator.empty() && options.servers <= 0) {
    return Usage(
        "--data-plane is for servers that are started here; those elsewhere have their "
        "own (syncline serve --data-plane), and workers follow their servers");
  }
  return absl::OkStatus();
}

// Refuses flags that need a server.
absl::Status CheckWithoutServers(const RunOptions& options) {
  if (!options.coordinator.empty() || options.servers != 0) return absl::OkStatus();
  std::vector<std::pair<std::string, bool>> given = {
      {"--checkpoint-dir", !options.checkpoint_dir.empty()},
      {"--journal-dir", !options.journal_dir.empty()},
      {"--journal-snapshot-factor", options.journal_snapshot_factor.has_value()},
      {"--mode", !options.mode.empty()},
      {"--local-aggregation", options.local_aggregation},
      {"--data-plane", !options.data_plane.empty()},
      {"--engine-threads", options.engine_threads > 0}};
  for (const JobSetting& setting : kJobSettings) {
    // A value that equals the default asks for nothing.
    const std::string value = options.Setting(setting.name);
    given.emplace_back(FlagOf(setting),
                       !value.empty() && value != GetJobSetting(setting, {}));
  }
  for (const auto& [flag, is_given] : given) {
    if (!is_given) continue;
    return Usage(absl::StrCat(
        "--servers 0 is for programs that use collectives alone, and ", flag,
        " is for servers: drop ", flag, ", or start a server with --servers 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckTheRest(const RunOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(CheckWithoutServers(options));
  SYNCLINE_RETURN_IF_ERROR(CheckSettings(options));
  SYNCLINE_RETURN_IF_ERROR(CheckDurability(options));
  SYNCLINE_RETURN_IF_ERROR(CheckDataPlane(options));
  if (options.program.empty()) {
    return Usage(
        "nothing to run; write the program after --, as in --workers 2 -- ./train");
  }
  if (options.standalone && !options.coordinator.empty()) {
    return Usage(
        "--standalone starts its own coordinator; drop --standalone or --coordinator");
  }
  if (options.servers > static_cast<int>(kMaxServers)) {
    return Usage(absl::StrCat("a job has at most ", kMaxServers, " servers"));
  }
  if (options.engine_threads < 0 ||
      options.engine_threads > static_cast<int>(kMaxEngineThreads)) {
    return Usage(absl::StrCat("--engine-threads must be 1 to ", kMaxEngineThreads));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckCheckpoints(options));
  if (options.max_restarts < 0) return Usage("--max-restarts must not be negative");
  absl::Status named = CheckName("--job", options.job, kMaxJobNameBytes);
  if (!options.run_id.empty()) {
    named.Update(CheckName("--run-id", options.run_id, kMaxJobNameBytes));
  }
  if (!named.ok()) return Usage(std::string(named.message()));
  if (options.tls.HasTls() && options.coordinator.empty()) {
    return Usage(
        "everything that `syncline run` starts is on this host and needs no certificate; "
        "drop --tls-* (SYNCLINE_TLS_*), or give the --coordinator that needs them");
  }
  if (options.tls.HasTls() && options.servers > 0) {
    return Usage(
        "a worker's certificate cannot be a server's; drop --servers, and start "
        "`syncline "
        "serve --role server` with its own");
  }
  return CheckTlsOptions(options.tls);
}

Output OutputOf(int stream, int redirected, int teed) {
  if ((teed & stream) != 0) return Output::kTee;
  return (redirected & stream) != 0 ? Output::kLog : Output::kInherit;
}

std::vector<std::pair<std::string, std::string>> WorkerEnvironment(
    const RunOptions& options, const Sizes& sizes, int local) {
  const int rank = options.node_rank * sizes.local + local;
  std::vector<std::pair<std::string, std::string>> env = {
      {"RANK", absl::StrCat(rank)},
      {"LOCAL_RANK", absl::StrCat(local)},
      {"GROUP_RANK", absl::StrCat(options.node_rank)},
      {"WORLD_SIZE", absl::StrCat(sizes.world)},
      {"LOCAL_WORLD_SIZE", absl::StrCat(sizes.local)},
      // torch.distributed and trainers read these, as torchrun sets them.
      {"ROLE_NAME", options.role},
      {"ROLE_RANK", absl::StrCat(rank)},
      {"ROLE_WORLD_SIZE", absl::StrCat(sizes.world)},
      {"GROUP_WORLD_SIZE", absl::StrCat(sizes.world / sizes.local)},
      {"TORCHELASTIC_RUN_ID", options.run_id.empty() ? options.job : options.run_id},
      {"TORCHELASTIC_MAX_RESTARTS", absl::StrCat(options.max_restarts)},
      {"SYNCLINE_JOB", options.job},
      {"SYNCLINE_WORKERS", absl::StrCat(sizes.world)},
  };
  const std::string aggregation = options.local_aggregation ? "1" : "";
  // Lets programs know whether the run has servers.
  const std::string servers = options.servers >= 0
                                  ? absl::StrCat(options.servers)
                                  : (options.coordinator.empty() ? "1" : "elsewhere");
  const std::pair<const char*, const std::string&> optional[] = {
      {"SYNCLINE_MODE", options.mode},
      {"SYNCLINE_LOCAL_AGGREGATION", aggregation},
      {"SYNCLINE_RUN_ID", options.run_id},
      {"SYNCLINE_RUN_SERVERS", servers},
      {"SYNCLINE_GROUP_ADDRESS", options.local_addr},
      {"SYNCLINE_TLS_CERT", options.tls.cert_file},
      {"SYNCLINE_TLS_KEY", options.tls.key_file},
      {"SYNCLINE_TLS_CA", options.tls.ca_file},
      {"SYNCLINE_IDENTITIES", options.tls.identities_file}};
  for (const auto& [name, value] : optional) {
    if (!value.empty()) env.emplace_back(name, value);
  }
  for (const JobSetting& setting : kJobSettings) {
    const std::string value = options.Setting(setting.name);
    if (!value.empty()) env.emplace_back(VariableOf(setting), value);
  }
  return env;
}

}  // namespace

std::string RunOptions::Setting(std::string_view name) const {
  SYNCLINE_CHECK(FindJobSetting(name) != nullptr);
  const auto given = settings.find(name);
  return given == settings.end() ? "" : given->second;
}

uint32_t MemberOf(const RunOptions& options, int rank) {
  return static_cast<uint32_t>(options.local_aggregation ? options.node_rank : rank);
}

bool IsOneNode(const std::string& nnodes) { return nnodes == "1" || nnodes == "1:1"; }

absl::StatusOr<LaunchPlan> MakeLaunchPlan(const RunOptions& options,
                                          const Machine& machine) {
  SYNCLINE_RETURN_IF_ERROR(CheckTheRest(options));
  SYNCLINE_ASSIGN_OR_RETURN(const Sizes sizes, WorkOutSizes(options, machine));
  SYNCLINE_RETURN_IF_ERROR(CheckMode(options, sizes));
  LaunchPlan plan;
  SYNCLINE_ASSIGN_OR_RETURN(
      plan.failure_timeout,
      ParseDurationFlag("--failure-timeout", options.failure_timeout));
  SYNCLINE_RETURN_IF_ERROR(Timeouts::Validate(plan.failure_timeout));
  if (!options.patience.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(plan.patience,
                              ParseDurationFlag("--patience", options.patience));
  }
  plan.world_size = sizes.world;
  plan.min_workers = options.min_workers > 0 ? options.min_workers : sizes.least;
  if (plan.min_workers > sizes.world) {
    return Usage(absl::StrCat("--min-workers ", plan.min_workers, " is more than the ",
                              sizes.world, " workers of the job"));
  }
  plan.starts_coordinator = options.coordinator.empty();
  plan.servers =
      options.servers >= 0 ? options.servers : (plan.starts_coordinator ? 1 : 0);
  RunOptions told = options;
  SYNCLINE_ASSIGN_OR_RETURN(told.settings["answers"], AnswersFor(options, plan));
  // Servers share the memory; otherwise each would claim all of it.
  if (plan.servers > 0) {
    plan.server_memory_bytes =
        machine.memory_for_jobs / static_cast<uint64_t>(plan.servers);
  }
  SYNCLINE_ASSIGN_OR_RETURN(const auto tee, StreamsOfRank::Parse("--tee", options.tee));
  // Rank 0 keeps the terminal, so that its progress bar works.
  const std::string redirects = options.redirects.empty() ? "3,0:0" : options.redirects;
  SYNCLINE_ASSIGN_OR_RETURN(const auto redirected,
                            StreamsOfRank::Parse("--redirects", redirects));
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto shown,
      RanksFilter::Parse(options.local_ranks_filter, sizes.local,
                         options.redirects.empty() ? Output::kTee : Output::kLog));
  for (int local = 0; local < sizes.local; ++local) {
    WorkerPlan worker;
    worker.rank = options.node_rank * sizes.local + local;
    worker.name = absl::StrCat("worker", worker.rank);
    worker.member = MemberOf(options, worker.rank);
    worker.is_leader = !options.local_aggregation || local == 0;
    if (!worker.is_leader) worker.within = absl::StrCat("its rank ", worker.rank, ": ");
    const int log = redirected.Of(worker.rank);
    const int show = tee.Of(worker.rank);
    worker.out = shown.Of(local, OutputOf(kStdout, log, show));
    worker.err = shown.Of(local, OutputOf(kStderr, log, show));
    worker.env = WorkerEnvironment(told, sizes, local);
    // Passed on with a unit, which the user may have omitted.
    worker.env.emplace_back("SYNCLINE_FAILURE_TIMEOUT",
                            absl::FormatDuration(plan.failure_timeout));
    if (!options.patience.empty()) {
      worker.env.emplace_back("SYNCLINE_PATIENCE", absl::FormatDuration(plan.patience));
    }
    plan.workers.push_back(std::move(worker));
  }
  return plan;
}

}  // namespace syncline
