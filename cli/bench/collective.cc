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

// Enough operations that a round takes a few milliseconds.
int Repetitions(uint64_t bytes) {
  return static_cast<int>(
      std::clamp<uint64_t>((uint64_t{16} << 20) / bytes, 1, BenchRank::kMostOperations));
}

struct Round {
  double seconds = 0;  // of the slowest rank
  double wrong = 0;    // of all ranks
};

// From one rank's to all ranks'.
absl::Status AddUp(Group& group, Round& round) {
  SYNCLINE_RETURN_IF_ERROR(group.Run({.type = ElementType::kF64,
                                      .reduce = ReduceOp::kMax,
                                      .output = &round.seconds,
                                      .count = 1}));
  return group.Run({.type = ElementType::kF64, .output = &round.wrong, .count = 1});
}

// So many operations, in batches after each of which the values are checked and set anew.
// The clock runs from when all are ready until all are done.
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

// Means of values that travel encoded. Wrong is what one rank has otherwise than the
// others, and a result that does not point where the first operation's mean does.
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

// A digest of what one operation makes of values whose sums depend on their order.
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
  // Once to warm up; what it computes is checked, too.
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
                     .security = plan.security}));
  Json rows = Json::array();
  for (const uint64_t bytes : plan.sizes) {
    SYNCLINE_ASSIGN_OR_RETURN(Json row, MeasureSize(*group, plan, bytes));
    rows.push_back(std::move(row));
  }
  if (rank != 0) return absl::OkStatus();
  return store.Set("report", rows.dump());
}

void KillAndReap(const std::vector<pid_t>& children) {
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
}

// Waits for all; when one fails the others would wait for it, and are ended.
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

// Each rank in a process of its own; this one waits for all.
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
  SYNCLINE_ASSIGN_OR_RETURN(const std::string rows,
                            store.Get("report", absl::Seconds(1)));
  return Json::parse(rows);
}

void Print(const Json& report) {
  const auto codec = report["codec"].get<std::string>();
  std::printf("%s%s among %d processes; this machine copies %.1f GB/s (read + written)\n",
              report["op"].get<std::string>().c_str(),
              codec.empty() ? "" : absl::StrCat(" of means as ", codec).c_str(),
              report["ranks"].get<int>(), report["machine"]["copy_gbs"].get<double>());
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
  std::error_code error;
  std::string folder =
      (std::filesystem::temp_directory_path(error) / "syncline-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make the folder ", folder));
  }
  // The ranks first: what measures the machine starts threads, and threads do not fork.
  absl::StatusOr<Json> rows = RunRanks(plan, folder);
  std::filesystem::remove_all(folder, error);
  SYNCLINE_RETURN_IF_ERROR(rows.status());
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
                       {"rows", *std::move(rows)}};
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
                  "sum, average, min, max, premultiplied_sum (by 2), or of integers "
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
  app->add_flag("--exact-order", options->is_exact,
                "Sums in the order of ranks: the same bits by every algorithm");
  app->add_option("--codec", options->codec,
                  "Of all_reduce: values travel encoded, as onebit, topk:ratio=0.01 or "
                  "int8, with error feedback; the result is the mean");
  app->add_option("--wire", options->wire,
                  "shared memory (shared), TCP with TLS over loopback (tcp), or without "
                  "(tcp-plain)")
      ->capture_default_str();
  app->add_option("--hosts", options->hosts,
                  "With TCP: ranks behave as if they were on so many hosts; default: "
                  "each on one of its own");
  app->add_flag("--json", options->prints_json, "Print JSON");
  app->callback([options, selected] {
    *selected = [options] { return BenchCollective(*options); };
  });
}

}  // namespace syncline
