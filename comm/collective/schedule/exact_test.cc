// Tests reductions in the order of ranks, with a function that gives different results
// for different orders.
#include <bit>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/collective/schedule/checker_test_util.h"
#include "comm/collective/schedule/select.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

uint64_t ValueOf(int rank, size_t element) {
  return (static_cast<uint64_t>(rank) + 1) * 0xd6e8feb86659fd93u + element * 77;
}

Problem ExactProblem(CollectiveOp op, int ranks, size_t count) {
  return {.op = op, .ranks = ranks, .root = ranks / 2, .count = count, .exact = true};
}

// Returns element `i` of all ranks, combined in the order of ranks.
uint64_t InRankOrder(int ranks, size_t i) {
  uint64_t value = ValueOf(0, i);
  for (int rank = 1; rank < ranks; ++rank) value = InOrder(value, ValueOf(rank, i));
  return value;
}

Values ExpectedOf(const Problem& problem) {
  Values out;
  if (problem.op == CollectiveOp::kReduce && problem.rank != problem.root) return out;
  const size_t first = problem.op == CollectiveOp::kReduceScatter
                           ? static_cast<size_t>(problem.rank) * problem.count
                           : 0;
  for (size_t i = 0; i < problem.count; ++i) {
    out.push_back(InRankOrder(problem.ranks, first + i));
  }
  return out;
}

CheckedRun RunExact(Problem problem, Algorithm algorithm, uint64_t seed) {
  std::vector<Schedule> schedules;
  std::vector<Values> inputs;
  std::vector<Values> outputs;
  std::vector<Values> expected;
  for (problem.rank = 0; problem.rank < problem.ranks; ++problem.rank) {
    schedules.push_back(*MakeSchedule(problem, algorithm));
    const bool all = problem.op == CollectiveOp::kReduceScatter;
    inputs.emplace_back();
    for (size_t i = 0; i < problem.count * static_cast<size_t>(all ? problem.ranks : 1);
         ++i) {
      inputs.back().push_back(ValueOf(problem.rank, i));
    }
    expected.push_back(ExpectedOf(problem));
    outputs.push_back(problem.op == CollectiveOp::kAllReduce
                          ? inputs.back()
                          : Values(expected.back().size(), 0xbad));
  }
  CheckedRun run = ScheduleChecker(schedules, inputs, outputs, InOrder).Run(seed);
  if (run.error.empty() && run.outputs != expected) run.error = "another order";
  return run;
}

std::vector<Algorithm> ThatKeepOrder(const Problem& problem) {
  std::vector<Algorithm> found;
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (Supports(algorithm, problem)) found.push_back(algorithm);
  }
  return found;
}

std::string Describe(const Problem& problem, Algorithm algorithm) {
  return absl::StrCat(std::string(CollectiveName(problem.op)), " by ",
                      std::string(AlgorithmName(algorithm)), " of ", problem.count,
                      " elements, ", problem.ranks, " ranks, ", problem.local,
                      " of each host");
}

TEST(ExactOrder, HoldsForEveryNumberOfRanksAndAlgorithm) {
  for (int ranks = 1; ranks <= kMaxCheckedRanks; ++ranks) {
    for (const CollectiveOp op : {CollectiveOp::kAllReduce, CollectiveOp::kReduce,
                                  CollectiveOp::kReduceScatter}) {
      for (const size_t count : {0u, 1u, 5u}) {
        const Problem problem = ExactProblem(op, ranks, count);
        for (const Algorithm algorithm : ThatKeepOrder(problem)) {
          EXPECT_EQ(RunExact(problem, algorithm, count + 7).error, "")
              << Describe(problem, algorithm);
        }
      }
    }
  }
}

TEST(ExactOrder, DoesNotDependOnHosts) {
  for (const int ranks : {4, 6, 8, 9, 12, 15, 24, 32}) {
    if (ranks > kMaxCheckedRanks) continue;
    for (int local = 2; local <= ranks; ++local) {
      if (ranks % local != 0) continue;
      for (const size_t count : {1u, 5u, 50u}) {
        Problem problem = ExactProblem(CollectiveOp::kAllReduce, ranks, count);
        problem.local = local;
        for (const Algorithm algorithm : ThatKeepOrder(problem)) {
          EXPECT_EQ(RunExact(problem, algorithm, count).error, "")
              << Describe(problem, algorithm);
        }
      }
    }
  }
}

TEST(ExactOrder, DoesNotDependOnSegments) {
  for (const size_t segment : {1u, 7u, 50u}) {
    Problem problem = ExactProblem(CollectiveOp::kAllReduce, 5, 50);
    problem.segment = segment;
    EXPECT_EQ(RunExact(problem, Algorithm::kDirect, segment).error, "") << segment;
  }
}

TEST(ExactOrder, IsWhatTheOthersDoNotKeep) {
  // If they were asked to keep it, the checker would detect that they do not.
  Problem problem = ExactProblem(CollectiveOp::kAllReduce, 8, 16);
  problem.exact = false;
  for (const Algorithm algorithm :
       {Algorithm::kDirect, Algorithm::kRing, Algorithm::kDoubling, Algorithm::kHalving,
        Algorithm::kTree}) {
    EXPECT_EQ(RunExact(problem, algorithm, 1).error, "another order")
        << Describe(problem, algorithm);
  }
}

TEST(ExactOrder, CompletesEachElementOnce) {
  for (const auto& [ranks, local] : {std::pair(7, 1), std::pair(6, 2), std::pair(9, 3)}) {
    Problem problem = ExactProblem(CollectiveOp::kAllReduce, ranks, 40);
    problem.local = local;
    for (const Algorithm algorithm : ThatKeepOrder(problem)) {
      const size_t times =
          algorithm == Algorithm::kDoubling ? static_cast<size_t>(ranks) : 1;
      EXPECT_EQ(RunExact(problem, algorithm, 2).completed, times * 40)
          << Describe(problem, algorithm);
    }
  }
}

void CheckTraffic(const Problem& problem, Algorithm algorithm) {
  SCOPED_TRACE(Describe(problem, algorithm));
  const CheckedRun run = RunExact(problem, algorithm, 1);
  const Traffic traffic = TrafficOf(problem, algorithm, 1);
  // Blocks of an all-gather need not wait for their round.
  if (algorithm == Algorithm::kDoubling) {
    EXPECT_LE(run.rounds, traffic.rounds);
  } else {
    EXPECT_EQ(run.rounds, traffic.rounds);
  }
  EXPECT_DOUBLE_EQ(static_cast<double>(run.elements), traffic.bytes);
  EXPECT_DOUBLE_EQ(static_cast<double>(run.messages), traffic.messages);
}

TEST(ExactOrder, MovesWhatTheFormulasSay) {
  for (int ranks = 2; ranks <= kMaxCheckedRanks; ++ranks) {
    for (int local = 1; local < ranks; ++local) {
      if (ranks % local != 0) continue;
      Problem problem =
          ExactProblem(CollectiveOp::kAllReduce, ranks, static_cast<size_t>(ranks) * 2);
      problem.local = local;
      for (const Algorithm algorithm : ThatKeepOrder(problem)) {
        CheckTraffic(problem, algorithm);
      }
    }
  }
}

// Compares the bytes that leave the busiest host.
TEST(ExactOrder, UsesACableAsTheFormulaSays) {
  for (const auto& [hosts, local] : {std::pair(2, 3), std::pair(3, 2), std::pair(5, 4)}) {
    Problem problem = ExactProblem(CollectiveOp::kAllReduce, hosts * local, 120);
    problem.local = local;
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHierarchical}) {
      std::vector<double> leaving(static_cast<size_t>(hosts));
      for (problem.rank = 0; problem.rank < problem.ranks; ++problem.rank) {
        const Schedule schedule = *MakeSchedule(problem, algorithm);
        for (const Step& step : schedule.steps) {
          if (step.action != Action::kSend) continue;
          if (step.peers[0] / local == problem.rank / local) continue;
          leaving[static_cast<size_t>(problem.rank / local)] +=
              static_cast<double>(step.count());
        }
      }
      EXPECT_DOUBLE_EQ(*std::max_element(leaving.begin(), leaving.end()),
                       TrafficOf(problem, algorithm, 1).cable_bytes)
          << Describe(problem, algorithm);
      problem.rank = 0;
    }
  }
}

TEST(ExactOrder, IsRefusedWhereAnAlgorithmCannotKeepIt) {
  Problem problem = ExactProblem(CollectiveOp::kAllReduce, 4, 8);
  const auto refusal = [&](Algorithm algorithm) {
    const absl::Status status = MakeSchedule(problem, algorithm).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(Algorithm::kHalving), testing::HasSubstr("'ring', 'doubling'"));
  EXPECT_THAT(refusal(Algorithm::kTree), testing::HasSubstr("exact order of ranks"));
  problem.rounds = true;
  EXPECT_THAT(refusal(Algorithm::kRing), testing::HasSubstr("of BF16 or FP16"));
  EXPECT_TRUE(Supports(Algorithm::kDoubling, problem));
  problem.op = CollectiveOp::kBroadcast;  // has no reduction
  EXPECT_TRUE(Supports(Algorithm::kTree, problem));
}

TEST(ExactOrder, IsChosenByItsOwnCosts) {
  Problem problem = ExactProblem(CollectiveOp::kAllReduce, 32, 2);
  EXPECT_EQ(Select(problem, 4, {.hosts = 32}).algorithm, Algorithm::kDoubling);
  problem.count = 64 << 20;
  EXPECT_EQ(Select(problem, 4, {.hosts = 32}).algorithm, Algorithm::kRing);
  problem.local = 8;
  EXPECT_EQ(Select(problem, 4, {.hosts = 4}).algorithm, Algorithm::kHierarchical);
  problem.rounds = true;
  EXPECT_EQ(Select(problem, 2, {.hosts = 4}).algorithm, Algorithm::kDirect);
  problem.op = CollectiveOp::kReduce;
  EXPECT_EQ(Select(problem, 4, {.hosts = 4}).algorithm, Algorithm::kDirect);
}

}  // namespace
}  // namespace syncline::collective
