#include "cli/bench/collective.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/collective_plan.h"
#include "cli/bench/collective_rank.h"
#include "cli/bench/figures.h"
#include "cli/scratch_folder.h"
#include "comm/base/crc32c.h"
#include "comm/base/env.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/collective/compressed/compressed_all_reduce.h"
#include "comm/collective/group/group.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using collective::CollectiveOp;
using collective::CompressedAllReduce;
using collective::ElementType;
using collective::FolderStore;
using collective::Group;
using collective::ReduceOp;

using Json = nlohmann::json;

constexpr int kRounds = 7;

double BusFactor(CollectiveOp op, int ranks) {
  const double n = ranks;
  if (op == CollectiveOp::kAllReduce) return 2 * (n - 1) / n;
  return BenchRank::IsCut(op) ? (n - 1) / n : 1;
}

// Returns a number of operations that makes a round take a few milliseconds.
int Repetitions(uint64_t bytes) {
  return static_cast<int>(
      std::clamp<uint64_t>((uint64_t{16} << 20) / bytes, 1, BenchRank::kMaxOperations));
}

struct Round {
  double seconds = 0;  // of the slowest rank
  double wrong = 0;    // of all ranks
};

// Combines the results of one rank into those of all ranks.
absl::Status AddUp(Group& group, Round& round) {
  SYNCLINE_RETURN_IF_ERROR(group.Run({.type = ElementType::kF64,
                                      .reduce = ReduceOp::kMax,
                                      .output = &round.seconds,
                                      .count = 1}));
  return group.Run({.type = ElementType::kF64, .output = &round.wrong, .count = 1});
}

// Runs the operations in batches. After each batch it checks the values and sets them
// again. The clock runs from when all ranks are ready until all are done.
absl::StatusOr<Round> MeasureRound(Group& group, BenchRank& rank, int operations) {
  const SteadyClock clock;
  Round round;
  for (int done = 0; done < operations;) {
    const int batch = std::min(operations - done, rank.MostOperations());
    rank.Reset();
    SYNCLINE_RETURN_IF_ERROR(group.Run({.op = CollectiveOp::kBarrier}));
    const absl::Duration begin = clock.Now();
    for (int k = 0; k < batch; ++k) {
      SYNCLINE_RETURN_IF_ERROR(group.Run(rank.MakeCall()));
    }
    SYNCLINE_RETURN_IF_ERROR(group.Run({.op = CollectiveOp::kBarrier}));
    round.seconds += absl::ToDoubleSeconds(clock.Now() - begin);
    round.wrong += static_cast<double>(rank.CountWrong(batch));
    done += batch;
  }
  SYNCLINE_RETURN_IF_ERROR(AddUp(group, round));
  return round;
}

// Measures means of values that travel encoded. A value is wrong if it differs between
// ranks. After a single operation, the result must also point in the direction of the
// true mean.
absl::StatusOr<Round> MeasureCompressed(Group& group, CompressedAllReduce& reduce,
                                        std::vector<float>& values, int operations) {
  const SteadyClock clock;
  const auto value_of = [](int rank, size_t i) {
    return static_cast<float>((static_cast<size_t>(rank) + i * i) % 7) - 3;
  };
  for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(group.rank(), i);
  SYNCLINE_RETURN_IF_ERROR(group.Run({.op = CollectiveOp::kBarrier}));
  const absl::Duration begin = clock.Now();
  for (int k = 0; k < operations; ++k) SYNCLINE_RETURN_IF_ERROR(reduce.Mean(values));
  SYNCLINE_RETURN_IF_ERROR(group.Run({.op = CollectiveOp::kBarrier}));
  Round round = {.seconds = absl::ToDoubleSeconds(clock.Now() - begin)};
  std::vector<float> most = values;
  SYNCLINE_RETURN_IF_ERROR(
      group.Run({.reduce = ReduceOp::kMax, .output = most.data(), .count = most.size()}));
  double along = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    round.wrong += most[i] == values[i] ? 0 : 1;
    double sum = 0;
    for (int rank = 0; rank < group.ranks(); ++rank) sum += value_of(rank, i);
    along += sum * values[i];
  }
  if (operations == 1 && !(along > 0)) ++round.wrong;
  SYNCLINE_RETURN_IF_ERROR(AddUp(group, round));
  return round;
}

absl::StatusOr<Json> MeasureCodec(Group& group, const CollectivePlan& plan,
                                  uint64_t bytes) {
  std::vector<float> values(std::max<uint64_t>(bytes / sizeof(float), 1));
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto reduce,
      CompressedAllReduce::Create(
          {.group = &group, .codec = plan.codec, .elements = values.size()}));
  SYNCLINE_ASSIGN_OR_RETURN(const Round first,
                            MeasureCompressed(group, *reduce, values, 1));
  double wrong = first.wrong;
  const uint64_t sent = reduce->sent_bytes();
  std::vector<double> seconds;
  for (int k = 0; k < kRounds; ++k) {
    const int operations = std::min(Repetitions(bytes), 50);
    SYNCLINE_ASSIGN_OR_RETURN(const Round round,
                              MeasureCompressed(group, *reduce, values, operations));
    seconds.push_back(round.seconds / operations);
    wrong += round.wrong;
  }
  const Json time = Quantiles(seconds);
  const double algbw = static_cast<double>(sizeof(float) * values.size()) /
                       time["median"].get<double>() / 1e9;
  return Json{{"size", sizeof(float) * values.size()},
              {"seconds", time},
              {"algbw_gbs", algbw},
              {"busbw_gbs", algbw * BusFactor(plan.op, plan.ranks)},
              {"sent_bytes", sent},
              {"wrong", static_cast<uint64_t>(wrong)},
              {"choice", plan.codec}};
}

// Returns a checksum of the result of one operation on values whose sums depend on the
// order.
absl::StatusOr<std::string> BitsOf(Group& group, const CollectivePlan& plan,
                                   uint64_t bytes) {
  BenchRank rank(plan, bytes, group.rank());
  rank.FillUneven();
  SYNCLINE_RETURN_IF_ERROR(group.Run(rank.MakeCall()));
  return absl::StrFormat("%08x", Crc32c(std::as_bytes(rank.output())));
}

absl::StatusOr<Json> MeasureSize(Group& group, const CollectivePlan& plan,
                                 uint64_t bytes) {
  if (!plan.codec.empty()) return MeasureCodec(group, plan, bytes);
  BenchRank rank(plan, bytes, group.rank());
  const int operations = Repetitions(bytes);
  // One operation to warm up. Its result is checked too.
  SYNCLINE_ASSIGN_OR_RETURN(const Round first, MeasureRound(group, rank, 1));
  double wrong = first.wrong;
  std::vector<double> seconds;
  for (int k = 0; k < kRounds; ++k) {
    SYNCLINE_ASSIGN_OR_RETURN(const Round round, MeasureRound(group, rank, operations));
    seconds.push_back(round.seconds / operations);
    wrong += round.wrong;
  }
  const Json time = Quantiles(seconds);
  const double algbw =
      static_cast<double>(rank.bytes()) / time["median"].get<double>() / 1e9;
  Json row = {{"size", rank.bytes()},
              {"seconds", time},
              {"algbw_gbs", algbw},
              {"busbw_gbs", algbw * BusFactor(plan.op, plan.ranks)},
              {"wrong", static_cast<uint64_t>(wrong)},
              {"choice", plan.algorithm ? std::string(AlgorithmName(*plan.algorithm))
                                        : group.Choose(rank.MakeCall()).reason}};
  if (plan.is_exact) {
    SYNCLINE_ASSIGN_OR_RETURN(row["bits"], BitsOf(group, plan, bytes));
  }
  return row;
}

absl::Status RunRank(const CollectivePlan& plan, const std::string& folder, int rank) {
  FolderStore store(folder);
  const int host = rank / (plan.ranks / plan.hosts);
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto group,
      Group::Create({.name = "bench",
                     .rank = rank,
                     .ranks = plan.ranks,
                     .store = &store,
                     .exact_order = plan.is_exact,
                     .address = "127.0.0.1",
                     .host = plan.hosts > 1 ? absl::StrCat("host", host) : "",
                     .security = plan.security,
                     .costs = plan.costs}));
  Json rows = Json::array();
  for (const uint64_t bytes : plan.sizes) {
    SYNCLINE_ASSIGN_OR_RETURN(Json row, MeasureSize(*group, plan, bytes));
    rows.push_back(std::move(row));
  }
  if (rank != 0) return absl::OkStatus();
  return store.Set("report",
                   Json{{"rows", rows}, {"costs", group->DescribeCosts()}}.dump());
}

void KillAndReap(const std::vector<pid_t>& children) {
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
}

// Waits for all ranks. If one fails, the others would wait for it forever, so they are
// killed.
absl::Status Reap(std::vector<pid_t> children) {
  while (!children.empty()) {
    int code = 0;
    const pid_t ended = waitpid(-1, &code, 0);
    std::erase(children, ended);
    if (ended > 0 && code == 0) continue;
    KillAndReap(children);
    return absl::InternalError("a rank failed: its own line says why");
  }
  return absl::OkStatus();
}

// Runs each rank in its own process, and waits for all. Returns rank 0's rows and costs.
absl::StatusOr<Json> RunRanks(const CollectivePlan& plan, const std::string& folder) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const absl::Status status = RunRank(plan, folder, rank);
      if (!status.ok()) {
        std::fprintf(stderr, "rank %d: %s\n", rank,
                     std::string(status.message()).c_str());
      }
      _exit(status.ok() ? 0 : 1);
    }
    if (child < 0) {
      KillAndReap(children);
      return absl::ResourceExhaustedError(
          "cannot start a process for each rank: take fewer --ranks, or raise the limit");
    }
    children.push_back(child);
  }
  SYNCLINE_RETURN_IF_ERROR(Reap(std::move(children)));
  FolderStore store(folder);
  SYNCLINE_ASSIGN_OR_RETURN(const std::string report,
                            store.Get("report", absl::Seconds(1)));
  return Json::parse(report);
}

void Print(const Json& report) {
  const auto codec = report["codec"].get<std::string>();
  std::printf("%s%s among %d processes; this machine copies %.1f GB/s (read + written)\n",
              report["op"].get<std::string>().c_str(),
              codec.empty() ? "" : absl::StrCat(" of means as ", codec).c_str(),
              report["ranks"].get<int>(), report["machine"]["copy_gbs"].get<double>());
  if (codec.empty()) std::printf("%s\n", report["costs"].get<std::string>().c_str());
  const bool is_exact = report["exact_order"].get<bool>();
  std::printf("%12s %12s %12s %12s %8s%s\n", "size (B)", "time (us)", "algbw (GB/s)",
              "busbw (GB/s)", "wrong",
              is_exact        ? "         bits"
              : codec.empty() ? ""
                              : "     sent (B)");
  for (const Json& row : report["rows"]) {
    std::string more;
    if (!codec.empty()) {
      more = absl::StrFormat(" %12d", row["sent_bytes"].get<uint64_t>());
    } else if (is_exact) {
      more = absl::StrFormat(" %12s", row["bits"].get<std::string>());
    }
    std::printf("%12llu %12.2f %12.3f %12.3f %8llu%s\n",
                static_cast<unsigned long long>(row["size"].get<uint64_t>()),
                row["seconds"]["median"].get<double>() * 1e6,
                row["algbw_gbs"].get<double>(), row["busbw_gbs"].get<double>(),
                static_cast<unsigned long long>(row["wrong"].get<uint64_t>()),
                more.c_str());
  }
}

absl::StatusOr<int> BenchCollective(const CollectiveOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const CollectivePlan plan, PlanCollective(options));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string folder,
                            MakeScratchFolder("syncline-bench-"));
  // The ranks come first: measuring the machine starts threads, and a process with
  // threads should not fork.
  absl::StatusOr<Json> measured = RunRanks(plan, folder);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  SYNCLINE_RETURN_IF_ERROR(measured.status());
  const Json report = {{"bench", "collective"},
                       {"op", options.op},
                       {"type", "f32"},
                       {"codec", options.codec},
                       {"ranks", options.ranks},
                       {"wire", options.wire},
                       {"hosts", plan.hosts},
                       {"exact_order", plan.is_exact},
                       {"reduce", options.reduce},
                       {"machine", MachineFigures()},
                       {"costs", (*measured)["costs"]},
                       {"rows", (*measured)["rows"]}};
  uint64_t wrong = 0;
  for (const Json& row : report["rows"]) wrong += row["wrong"].get<uint64_t>();
  if (options.prints_json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    Print(report);
  }
  if (wrong == 0) return kExitDone;
  return absl::DataLossError(
      absl::StrCat(wrong, " elements came out wrong: this is a bug"));
}

}  // namespace

void AddBenchCollective(CLI::App& bench, Command* selected) {
  auto options = std::make_shared<CollectiveOptions>();
  CLI::App* app = bench.add_subcommand(
      "collective", "Time of collective operations among processes of this host");
  app->add_option("--op", options->op,
                  "all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, "
                  "scatter, all_to_all or barrier")
      ->capture_default_str();
  app->add_option("--reduce", options->reduce,
                  "sum, average, min, max, premultiplied_sum (by 2), or for integers "
                  "bitwise_and, bitwise_or, bitwise_xor")
      ->capture_default_str();
  app->add_option("--ranks", options->ranks, "Processes")->capture_default_str();
  app->add_option("--bytes", options->bytes,
                  "Size, as 4096 or 64Mi, or FIRST..LAST in steps of 4x")
      ->capture_default_str();
  app->add_option("--algorithm", options->algorithm,
                  "direct, ring, doubling, halving, tree, bruck, pairwise, hierarchical, "
                  "double_tree or torus; "
                  "default: the fastest by the cost model");
  app->add_option("--costs", options->costs,
                  "Costs of that model: probe (measure them first), or a file, to which "
                  "measured ones are added; default: built in");
  app->add_flag(
      "--exact-order", options->is_exact,
      "Sum in the order of ranks, which gives the same bits with every algorithm");
  app->add_option("--codec", options->codec,
                  "For all_reduce: codec of the values on the wire, such as onebit, "
                  "topk:ratio=0.01 or int8, with error feedback; the result is the mean");
  app->add_option("--wire", options->wire,
                  "shared (shared memory), tcp (TCP with TLS over loopback) or tcp-plain "
                  "(TCP without TLS)")
      ->capture_default_str();
  app->add_option("--hosts", options->hosts,
                  "With TCP: ranks behave as if they were on this many hosts; default: "
                  "one host for each rank");
  app->add_flag("--json", options->prints_json, "Print JSON");
  app->callback([options, selected] {
    *selected = [options] { return BenchCollective(*options); };
  });
}

}  // namespace syncline
