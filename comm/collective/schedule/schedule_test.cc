#include "comm/collective/schedule/schedule.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/collective/schedule/builder.h"
#include "comm/collective/schedule/checker_test_util.h"
#include "comm/collective/schedule/select.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

uint64_t Value(int rank, size_t element) {
  return (static_cast<uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15u +
         static_cast<uint64_t>(element) * 0xbf58476d1ce4e5b9u;
}

size_t CountTo(const Problem& problem, int from, int to) {
  if (problem.send_counts.empty()) return problem.count;
  return static_cast<size_t>(from * 3 + to * 5) % 4;
}

// Returns the problem from the view of `rank`.
Problem Of(Problem problem, int rank) {
  problem.rank = rank;
  if (!problem.send_counts.empty()) {
    for (int peer = 0; peer < problem.ranks; ++peer) {
      const auto i = static_cast<size_t>(peer);
      problem.send_counts[i] = CountTo(problem, rank, peer);
      problem.receive_counts[i] = CountTo(problem, peer, rank);
    }
  }
  return problem;
}

bool TakesAll(CollectiveOp op) {
  return op == CollectiveOp::kReduceScatter || op == CollectiveOp::kScatter ||
         op == CollectiveOp::kAllToAll;
}

Values InputOf(const Problem& problem) {
  size_t count = problem.count;
  if (TakesAll(problem.op)) {
    count = 0;
    for (int to = 0; to < problem.ranks; ++to)
      count += CountTo(problem, problem.rank, to);
  }
  Values input(count);
  for (size_t i = 0; i < count; ++i) input[i] = Value(problem.rank, i);
  return input;
}

// Returns the expected output of `rank`, computed from the definitions.
Values Expected(const Problem& problem, const std::vector<Values>& inputs) {
  const size_t n = problem.count;
  const auto rank = static_cast<size_t>(problem.rank);
  const auto root = static_cast<size_t>(problem.root);
  Values out;
  const auto sum = [&](size_t element) {
    uint64_t total = 0;
    for (const Values& input : inputs) total += input[element];
    return total;
  };
  switch (problem.op) {
    case CollectiveOp::kAllReduce:
      for (size_t i = 0; i < n; ++i) out.push_back(sum(i));
      return out;
    case CollectiveOp::kReduce:
      for (size_t i = 0; i < n && rank == root; ++i) out.push_back(sum(i));
      return out;
    case CollectiveOp::kReduceScatter:
      for (size_t i = 0; i < n; ++i) out.push_back(sum(rank * n + i));
      return out;
    case CollectiveOp::kBroadcast:
      return inputs[root];
    case CollectiveOp::kGather:
      if (rank != root) return out;
      [[fallthrough]];
    case CollectiveOp::kAllGather:
      for (const Values& input : inputs)
        out.insert(out.end(), input.begin(), input.end());
      return out;
    case CollectiveOp::kScatter:
      return Values(inputs[root].begin() + static_cast<ptrdiff_t>(rank * n),
                    inputs[root].begin() + static_cast<ptrdiff_t>(rank * n + n));
    case CollectiveOp::kAllToAll:
      for (int from = 0; from < problem.ranks; ++from) {
        size_t first = 0;
        for (int to = 0; to < problem.rank; ++to) first += CountTo(problem, from, to);
        const Values& input = inputs[static_cast<size_t>(from)];
        for (size_t i = 0; i < CountTo(problem, from, problem.rank); ++i) {
          out.push_back(input[first + i]);
        }
      }
      return out;
    case CollectiveOp::kBarrier:
      return out;
    case CollectiveOp::kSendReceive:
      return rank == root ? inputs[static_cast<size_t>(problem.source)] : out;
  }
  return out;
}

// Returns the initial output of a rank: its own values if the operation is in place,
// garbage otherwise.
Values OutputAtStart(const Problem& problem, const Values& input,
                     const Values& expected) {
  const bool in_place =
      problem.op == CollectiveOp::kAllReduce || problem.op == CollectiveOp::kBroadcast;
  return in_place ? input : Values(expected.size(), 0xbad);
}

CheckedRun RunAll(const Problem& problem, Algorithm algorithm, uint64_t seed) {
  std::vector<Schedule> schedules;
  std::vector<Values> inputs;
  std::vector<Values> outputs;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    schedules.push_back(*MakeSchedule(Of(problem, rank), algorithm));
    inputs.push_back(InputOf(Of(problem, rank)));
  }
  std::vector<Values> expected;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    expected.push_back(Expected(Of(problem, rank), inputs));
    outputs.push_back(
        OutputAtStart(problem, inputs[static_cast<size_t>(rank)], expected.back()));
  }
  CheckedRun run = ScheduleChecker(schedules, inputs, outputs).Run(seed);
  if (run.error.empty() && run.outputs != expected) run.error = "wrong values";
  return run;
}

std::string Describe(const Problem& problem, Algorithm algorithm, uint64_t seed) {
  return absl::StrCat(std::string(CollectiveName(problem.op)), " by ",
                      std::string(AlgorithmName(algorithm)), " of ", problem.count,
                      " elements, ", problem.ranks, " ranks, root ", problem.root,
                      ", seed ", seed);
}

class Schedules : public testing::TestWithParam<Algorithm> {
 protected:
  void CheckAll(int ranks, const std::vector<size_t>& counts) {
    for (int op = 0; op <= static_cast<int>(CollectiveOp::kSendReceive); ++op) {
      for (const size_t count : counts) {
        Problem problem = {.op = static_cast<CollectiveOp>(op),
                           .ranks = ranks,
                           .root = static_cast<int>(count) % ranks,
                           .source = ranks / 2,
                           .count = count};
        if (!Supports(GetParam(), problem)) continue;
        const uint64_t seed = static_cast<uint64_t>(ranks) * 1000 + count;
        const CheckedRun run = RunAll(problem, GetParam(), seed);
        EXPECT_EQ(run.error, "") << Describe(problem, GetParam(), seed);
      }
    }
  }
};

TEST_P(Schedules, AreRightForEveryNumberOfRanks) {
  for (int ranks = 1; ranks <= kMaxCheckedRanks; ++ranks) CheckAll(ranks, {0, 1, 5});
}

TEST_P(Schedules, AreRightForLongerVectors) {
  for (const int ranks : {2, 3, 4, 7, 8}) CheckAll(ranks, {63, 64, 65, 200});
}

TEST_P(Schedules, AreRightForManyRanks) {
  CheckAll(kChecksLargeGroups ? 48 : kMaxCheckedRanks + 1, {3});
}

TEST(Schedule, TreesAndToriOfManyRanksAreRight) {
  for (const Algorithm algorithm : {Algorithm::kDoubleTree, Algorithm::kTorus}) {
    for (const int ranks : {64, 100, 121, 127, 128, 250}) {
      const Problem problem = {
          .op = CollectiveOp::kAllReduce, .ranks = ranks, .count = 7};
      if (!kChecksLargeGroups || !Supports(algorithm, problem)) continue;
      EXPECT_EQ(RunAll(problem, algorithm, 1).error, "")
          << Describe(problem, algorithm, 1);
    }
  }
}

TEST(Schedule, ATorusIsAsSquareAsItCanBe) {
  EXPECT_EQ(TorusRows(36), 6);
  EXPECT_EQ(TorusRows(48), 6);
  EXPECT_EQ(TorusRows(10000), 100);
  EXPECT_EQ(TorusRows(31), 1);
  const Problem problem = {.op = CollectiveOp::kAllReduce, .ranks = 31, .count = 8};
  const absl::Status refused = MakeSchedule(problem, Algorithm::kTorus).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("product of two"));
}

// Exceptions are the first tree's root and, for an odd number of ranks, the last rank.
TEST(Schedule, WhoIsInsideOneTreeIsALeafOfTheOther) {
  for (int ranks = 4; ranks <= 33; ++ranks) {
    int inside_both = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Problem problem = {
          .op = CollectiveOp::kAllReduce, .rank = rank, .ranks = ranks, .count = 8};
      const Schedule schedule = *MakeSchedule(problem, Algorithm::kDoubleTree);
      int inside = 0;
      for (const Step& step : schedule.steps) {
        inside += step.action == Action::kReduce ? 1 : 0;
      }
      inside_both += inside == 2 ? 1 : 0;
    }
    EXPECT_LE(inside_both, 1) << ranks << " ranks";
  }
}

TEST_P(Schedules, MoveWhatTheFormulasSay) {
  for (int ranks = 2; ranks <= kMaxCheckedRanks; ++ranks) {
    for (int op = 0; op <= static_cast<int>(CollectiveOp::kAllToAll); ++op) {
      // Divisible by every number of slices, so that all slices have the same length.
      const size_t count =
          op == 0 ? static_cast<size_t>(ranks) * 32 : static_cast<size_t>(2);
      const Problem problem = {
          .op = static_cast<CollectiveOp>(op), .ranks = ranks, .count = count};
      if (!Supports(GetParam(), problem)) continue;
      const CheckedRun run = RunAll(problem, GetParam(), 1);
      const Traffic traffic = TrafficOf(problem, GetParam(), 1);
      SCOPED_TRACE(Describe(problem, GetParam(), 1));
      EXPECT_LE(run.rounds, traffic.rounds);
      // If the number of ranks is not a power of two, blocks need not wait for their
      // round. The root's children in a tree come one after another.
      const bool neat = GetParam() == Algorithm::kDirect ||
                        GetParam() == Algorithm::kRing ||
                        (GetParam() != Algorithm::kTree &&
                         std::has_single_bit(static_cast<unsigned>(ranks)));
      if (neat) {
        EXPECT_EQ(run.rounds, traffic.rounds);
      }
      EXPECT_DOUBLE_EQ(static_cast<double>(run.elements), traffic.bytes);
      EXPECT_DOUBLE_EQ(static_cast<double>(run.messages), traffic.messages);
    }
  }
}

// An average must be divided exactly once, when the reduction of an element is complete.
TEST_P(Schedules, CompleteEachReducedElementOnce) {
  for (int ranks = 2; ranks <= std::min(kMaxCheckedRanks, 17); ++ranks) {
    for (const CollectiveOp op : {CollectiveOp::kAllReduce, CollectiveOp::kReduce,
                                  CollectiveOp::kReduceScatter}) {
      const Problem problem = {.op = op, .ranks = ranks, .count = 40};
      if (!Supports(GetParam(), problem)) continue;
      size_t whole =
          op == CollectiveOp::kReduceScatter ? 40u * static_cast<size_t>(ranks) : 40u;
      // With recursive doubling, every participant completes the whole vector itself.
      if (GetParam() == Algorithm::kDoubling)
        whole *= std::bit_floor(static_cast<unsigned>(ranks));
      EXPECT_EQ(RunAll(problem, GetParam(), 3).completed, whole)
          << Describe(problem, GetParam(), 3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Schedules, testing::ValuesIn(kAllAlgorithms),
                         [](const auto& info) {
                           return std::string(AlgorithmName(info.param));
                         });

// Hosts with several ranks each.
class Hierarchies : public testing::TestWithParam<std::pair<int, int>> {
 protected:
  Problem AllReduceOf(size_t count) const {
    const auto [hosts, local] = GetParam();
    return {.op = CollectiveOp::kAllReduce,
            .ranks = hosts * local,
            .count = count,
            .local = local};
  }
};

TEST_P(Hierarchies, AreRightForEveryLength) {
  for (const size_t count : {0u, 1u, 5u, 64u, 200u}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const Problem problem = AllReduceOf(count);
      EXPECT_EQ(RunAll(problem, Algorithm::kHierarchical, seed).error, "")
          << Describe(problem, Algorithm::kHierarchical, seed);
    }
  }
}

TEST_P(Hierarchies, MoveWhatTheFormulaSays) {
  const auto [hosts, local] = GetParam();
  const size_t slices = static_cast<size_t>(hosts) * static_cast<size_t>(local);
  const Problem problem = AllReduceOf(slices * 6);
  const CheckedRun run = RunAll(problem, Algorithm::kHierarchical, 1);
  const Traffic traffic = TrafficOf(problem, Algorithm::kHierarchical, 1);
  EXPECT_EQ(run.rounds, traffic.rounds);
  EXPECT_DOUBLE_EQ(static_cast<double>(run.elements), traffic.bytes);
  EXPECT_DOUBLE_EQ(static_cast<double>(run.messages), traffic.messages);
  EXPECT_EQ(run.completed, problem.count) << "an average is divided once";
  double to_others = 0;
  for (int rank = 0; rank < local; ++rank) {
    const Schedule schedule = *MakeSchedule(Of(problem, rank), Algorithm::kHierarchical);
    for (const Step& step : schedule.steps) {
      const bool leaves = step.action == Action::kSend && step.peers[0] >= local;
      to_others += leaves ? static_cast<double>(step.count()) : 0;
    }
  }
  EXPECT_DOUBLE_EQ(to_others, traffic.cable_bytes);
}

INSTANTIATE_TEST_SUITE_P(All, Hierarchies,
                         testing::Values(std::pair(2, 2), std::pair(2, 3),
                                         std::pair(3, 2), std::pair(3, 4),
                                         std::pair(5, 3), std::pair(8, 4)),
                         [](const auto& info) {
                           return absl::StrCat(info.param.first, "HostsOf",
                                               info.param.second);
                         });

TEST(Schedule, AHierarchyNeedsHostsOfSeveralRanks) {
  Problem problem = {.op = CollectiveOp::kAllReduce, .ranks = 4, .count = 8};
  EXPECT_TRUE(
      absl::IsUnimplemented(MakeSchedule(problem, Algorithm::kHierarchical).status()));
  problem.local = 4;
  EXPECT_TRUE(
      absl::IsUnimplemented(MakeSchedule(problem, Algorithm::kHierarchical).status()));
  problem.local = 3;
  EXPECT_TRUE(
      absl::IsInvalidArgument(MakeSchedule(problem, Algorithm::kHierarchical).status()));
}

TEST(Schedule, AllToAllTakesUnequalCounts) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const Problem problem = {
        .op = CollectiveOp::kAllToAll,
        .ranks = ranks,
        .send_counts = std::vector<size_t>(static_cast<size_t>(ranks)),
        .receive_counts = std::vector<size_t>(static_cast<size_t>(ranks))};
    EXPECT_EQ(RunAll(problem, Algorithm::kDirect, 5).error, "") << ranks;
  }
}

TEST(Schedule, SegmentsOfAnAllReduceFollowEachOther) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    for (const size_t segment : {1u, 7u, 16u, 50u, 100u}) {
      const Problem problem = {.op = CollectiveOp::kAllReduce,
                               .ranks = ranks,
                               .count = 50,
                               .segment = segment};
      EXPECT_EQ(RunAll(problem, Algorithm::kDirect, segment).error, "")
          << ranks << " ranks, segments of " << segment;
    }
  }
}

TEST(Schedule, TheCheckerFindsWhatDoesNotWait) {
  const Problem problem = {.op = CollectiveOp::kAllReduce, .ranks = 4, .count = 20};
  std::vector<Schedule> schedules;
  std::vector<Values> outputs;
  Values sum(20);
  for (int rank = 0; rank < 4; ++rank) {
    schedules.push_back(*MakeSchedule(Of(problem, rank), Algorithm::kRing));
    for (Step& step : schedules.back().steps) step.waits.clear();
    outputs.push_back(InputOf(Of(problem, rank)));
    for (size_t i = 0; i < 20; ++i) sum[i] += outputs.back()[i];
  }
  const CheckedRun run = ScheduleChecker(schedules, outputs, outputs).Run(1);
  EXPECT_NE(run.outputs[0], sum);
}

TEST(Schedule, TheCheckerFindsDeadlocks) {
  Schedule waits_first;
  waits_first.steps = {{.action = Action::kReceive, .target = {Area::kOutput, 0, 1}},
                       {.action = Action::kSend, .source = {Area::kInput, 0, 1}}};
  waits_first.steps[1].waits = {0};
  Schedule other = waits_first;
  for (Step& step : waits_first.steps) step.peers = {1};
  for (Step& step : other.steps) step.peers = {0};
  const CheckedRun run =
      ScheduleChecker({waits_first, other}, {{1}, {2}}, {{0}, {0}}).Run(1);
  EXPECT_EQ(run.error, "the ranks wait for each other");
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  const Problem good = {.ranks = 4, .count = 3};
  const auto refused = [&](auto change) {
    Problem problem = good;
    change(problem);
    return MakeSchedule(problem, Algorithm::kDirect).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(refused([](Problem& p) { p.rank = 4; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refused([](Problem& p) { p.ranks = 0; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refused([](Problem& p) { p.root = -1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(refused([](Problem& p) { p.send_counts = {1}; })));
  Problem barrier = good;
  barrier.op = CollectiveOp::kBarrier;
  EXPECT_TRUE(absl::IsUnimplemented(MakeSchedule(barrier, Algorithm::kRing).status()));
}

TEST(Schedule, NamesAreReadBack) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    EXPECT_EQ(*ParseAlgorithm(AlgorithmName(algorithm)), algorithm);
  }
  EXPECT_THAT(std::string(ParseAlgorithm("rung").status().message()),
              testing::HasSubstr("did you mean 'ring'?"));
  EXPECT_EQ(*ParseCollective("all_to_all"), CollectiveOp::kAllToAll);
}

TEST(Select, TakesFewRoundsForFewBytesAndFewBytesForMany) {
  const Topology network = {.hosts = 64};
  Problem problem = {.op = CollectiveOp::kAllReduce, .ranks = 64, .count = 2};
  EXPECT_EQ(Select(problem, 4, network).algorithm, Algorithm::kDoubling);
  problem.count = 64 << 10;
  EXPECT_EQ(Select(problem, 4, network).algorithm, Algorithm::kDoubleTree);
  problem.count = 64 << 20;
  EXPECT_EQ(Select(problem, 4, network).algorithm, Algorithm::kHalving);
  problem.ranks = 60;  // not a power of two: halving needs a hand-over
  EXPECT_EQ(Select(problem, 4, {.hosts = 60}).algorithm, Algorithm::kTorus);
  problem.ranks = 59;
  problem.count = 4 << 20;
  EXPECT_EQ(Select(problem, 4, {.hosts = 59}).algorithm, Algorithm::kDoubleTree);
  problem.ranks = 64;
  problem.op = CollectiveOp::kBroadcast;
  problem.count = 2;
  EXPECT_EQ(Select(problem, 4, network).algorithm, Algorithm::kTree);
  problem.count = 64 << 20;
  EXPECT_EQ(Select(problem, 4, network).algorithm, Algorithm::kRing);
}

TEST(Select, RanksThatShareACableReduceBeforeTheyUseIt) {
  const Problem problem = {
      .op = CollectiveOp::kAllReduce, .ranks = 8, .count = 16 << 20, .local = 4};
  const Choice choice = Select(problem, 4, {.hosts = 2});
  EXPECT_EQ(choice.algorithm, Algorithm::kHierarchical) << choice.reason;
}

TEST(Select, WithinAHostSlicesAreReadFromAllPeers) {
  const Problem problem = {.op = CollectiveOp::kAllReduce, .ranks = 2, .count = 1 << 20};
  const Choice choice = Select(problem, 4, {});
  EXPECT_EQ(choice.algorithm, Algorithm::kDirect);
  EXPECT_THAT(choice.reason, testing::StartsWith("direct: "));
  EXPECT_THAT(choice.reason, testing::HasSubstr("ring: "));
}

TEST(Select, ManyRanksBetweenHostsExchangeInPairs) {
  Problem problem = {.op = CollectiveOp::kAllToAll, .ranks = 16, .count = 1 << 20};
  EXPECT_EQ(Select(problem, 4, {.hosts = 16}).algorithm, Algorithm::kPairwise);
  EXPECT_EQ(Select(problem, 4, {}).algorithm, Algorithm::kDirect);
  problem.count = 1;
  EXPECT_EQ(Select(problem, 4, {.hosts = 16}).algorithm, Algorithm::kBruck);
  problem.send_counts = problem.receive_counts = std::vector<size_t>(16, 5);
  EXPECT_EQ(Select(problem, 4, {.hosts = 16}).algorithm, Algorithm::kPairwise);
}

TEST(Select, ManyRanksBetweenHostsDoNotAllSendToOne) {
  for (int ranks = 9; ranks <= 33; ++ranks) {
    for (const size_t count : {1u, 1000u, 10'000'000u}) {
      const Problem problem = {
          .op = CollectiveOp::kAllReduce, .ranks = ranks, .count = count};
      EXPECT_NE(Select(problem, 4, {.hosts = ranks}).algorithm, Algorithm::kDirect);
    }
  }
}

}  // namespace
}  // namespace syncline::collective
