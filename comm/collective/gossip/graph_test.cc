#include "comm/collective/gossip/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <set>
#include <string>
#include <vector>

namespace syncline::collective {
namespace {

constexpr int kMaxRanks = 33;

using Matrix = std::vector<std::vector<double>>;

// Returns the matrix of deviations from the mean: I - 11'/p.
Matrix Deviations(int ranks) {
  Matrix x(static_cast<size_t>(ranks), std::vector<double>(static_cast<size_t>(ranks)));
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) x[i][j] = (i == j ? 1.0 : 0.0) - 1.0 / ranks;
  }
  return x;
}

// Applies one round in which partners take their mean.
void Mix(const GossipPlan& plan, uint64_t round, Matrix& x) {
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const auto partner = GossipPartner(plan, round, rank);
    if (!partner.has_value() || *partner < rank) continue;
    auto& own = x[static_cast<size_t>(rank)];
    auto& its = x[static_cast<size_t>(*partner)];
    for (size_t i = 0; i < own.size(); ++i) own[i] = its[i] = (own[i] + its[i]) / 2;
  }
}

// Returns the largest singular value: the most that can be left of any deviation.
double Norm(const Matrix& x) {
  std::vector<double> v(x.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = std::cos(1.0 + static_cast<double>(i * i));
  double norm = 0;
  for (int step = 0; step < 1000; ++step) {
    std::vector<double> image(x.size());
    std::vector<double> back(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) image[i] += x[i][j] * v[j];
    }
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) back[j] += x[i][j] * image[i];
    }
    double square = 0;
    for (const double value : back) square += value * value;
    if (square < 1e-40) return 0;
    norm = std::pow(square, 0.25);
    for (size_t i = 0; i < v.size(); ++i) v[i] = back[i] / std::sqrt(square);
  }
  return norm;
}

double LeftAfter(const GossipPlan& plan, uint64_t first, int rounds) {
  Matrix x = Deviations(plan.ranks);
  for (int i = 0; i < rounds; ++i) Mix(plan, first + static_cast<uint64_t>(i), x);
  return Norm(x);
}

int CeilLog2(int ranks) {
  int log = 0;
  while ((1 << log) < ranks) ++log;
  return log;
}

class Graphs : public testing::TestWithParam<GossipGraph> {};

TEST_P(Graphs, AreMatchingsWithOneIdleRankAtMost) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    const GossipPlan plan = {.graph = GetParam(), .ranks = ranks, .seed = 7};
    for (uint64_t round = 0; round < 300; ++round) {
      int idle = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto partner = GossipPartner(plan, round, rank);
        if (!partner.has_value()) {
          ++idle;
          continue;
        }
        ASSERT_GE(*partner, 0);
        ASSERT_LT(*partner, ranks);
        ASSERT_NE(*partner, rank) << ranks << " ranks, round " << round;
        ASSERT_EQ(GossipPartner(plan, round, *partner), rank)
            << ranks << " ranks, round " << round;
      }
      ASSERT_EQ(idle, ranks % 2) << ranks << " ranks, round " << round;
    }
  }
}

TEST_P(Graphs, BringAnyNumberOfRanksToTheMean) {
  for (int ranks = 2; ranks <= kMaxRanks; ++ranks) {
    const GossipPlan plan = {.graph = GetParam(), .ranks = ranks, .seed = 7};
    EXPECT_LT(LeftAfter(plan, 0, 60 + 2 * ranks * ranks), 1e-5) << ranks << " ranks";
  }
}

TEST_P(Graphs, AreKnownByTheirNames) {
  const auto parsed = ParseGossipGraph(GossipGraphName(GetParam()));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, Graphs,
                         testing::Values(GossipGraph::kRing, GossipGraph::kExponential,
                                         GossipGraph::kRandom),
                         [](const auto& info) {
                           return std::string(GossipGraphName(info.param));
                         });

TEST(GossipRing, ShrinksByTheCosineOfItsAngle) {
  for (int ranks = 2; ranks <= kMaxRanks; ranks += 2) {
    const double angle = 2 * std::numbers::pi / ranks;
    const double rate = ranks == 2 ? 0 : std::cos(angle);
    for (const int rounds : {2, 3, 8}) {
      const double left =
          LeftAfter({.graph = GossipGraph::kRing, .ranks = ranks}, 5, rounds);
      EXPECT_NEAR(left, std::pow(rate, rounds - 1), 1e-5)
          << ranks << " ranks, " << rounds << " rounds";
    }
  }
}

// One rank waits, so an odd number may be slower than one rank more.
TEST(GossipRing, OfAnOddNumberIsAboutAsFastAsWithItsNeighbours) {
  for (int ranks = 5; ranks <= kMaxRanks; ranks += 2) {
    const auto left = [&](int of) {
      return LeftAfter({.graph = GossipGraph::kRing, .ranks = of}, 0, ranks);
    };
    EXPECT_GT(left(ranks), left(ranks - 1)) << ranks << " ranks";
    EXPECT_LT(left(ranks), 1.1 * left(ranks + 1)) << ranks << " ranks";
  }
}

TEST(GossipExponential, IsExactAfterOneSweepOfAPowerOfTwo) {
  for (const int ranks : {4, 8, 16, 32}) {
    const GossipPlan plan = {.graph = GossipGraph::kExponential, .ranks = ranks};
    const int sweep = CeilLog2(ranks);
    for (int sweeps = 0; sweeps < 4; ++sweeps) {
      const auto first = static_cast<uint64_t>(sweeps * sweep);
      EXPECT_LT(LeftAfter(plan, first, sweep), 1e-9) << ranks << " ranks, from " << first;
      EXPECT_GT(LeftAfter(plan, first, sweep - 1), 0.1);
    }
  }
}

TEST(GossipExponential, LosesAThirdASweepAtLeast) {
  for (int ranks = 2; ranks <= kMaxRanks; ++ranks) {
    const GossipPlan plan = {.graph = GossipGraph::kExponential, .ranks = ranks};
    const int sweep = CeilLog2(ranks);
    for (int sweeps = 0; sweeps < 2; ++sweeps) {
      const auto first = static_cast<uint64_t>(sweeps * sweep);
      EXPECT_LT(LeftAfter(plan, first, sweep), 2.0 / 3) << ranks << " ranks";
    }
  }
}

// E|Wx|^2 = x' E[W] x, since a round of pairwise means is a projection.
TEST(GossipRandom, ShrinksAsExpected) {
  for (int ranks = 2; ranks <= kMaxRanks; ++ranks) {
    const GossipPlan plan = {.graph = GossipGraph::kRandom, .ranks = ranks, .seed = 3};
    const double wanted = ranks % 2 == 1 ? 0.5 : (ranks - 2.0) / (2 * (ranks - 1.0));
    double sum = 0;
    constexpr int kRounds = 3000;
    for (uint64_t round = 0; round < kRounds; ++round) {
      Matrix x = Deviations(ranks);
      Mix(plan, round, x);
      double square = 0;
      for (const auto& row : x) square += row[0] * row[0];
      sum += square / (1 - 1.0 / ranks);
    }
    EXPECT_NEAR(sum / kRounds, wanted, 0.04) << ranks << " ranks";
  }
}

TEST(GossipRandom, DependsOnItsSeed) {
  int equal = 0;
  for (uint64_t round = 0; round < 100; ++round) {
    const auto of_seed = [&](uint64_t seed) {
      return GossipPartner({.graph = GossipGraph::kRandom, .ranks = 16, .seed = seed},
                           round, 0);
    };
    EXPECT_EQ(of_seed(1), of_seed(1));
    equal += of_seed(1) == of_seed(2) ? 1 : 0;
  }
  EXPECT_LT(equal, 20);
}

TEST(GossipGraphs, LeaveEachRankIdleAsOftenAsTheOthers) {
  for (const GossipGraph graph : {GossipGraph::kRing, GossipGraph::kRandom}) {
    for (const int ranks : {3, 7, 15, 33}) {
      const GossipPlan plan = {.graph = graph, .ranks = ranks, .seed = 7};
      const int rounds = 200 * ranks * CeilLog2(ranks);
      std::vector<int> idle(static_cast<size_t>(ranks));
      for (int round = 0; round < rounds; ++round) {
        for (int rank = 0; rank < ranks; ++rank) {
          const bool has =
              GossipPartner(plan, static_cast<uint64_t>(round), rank).has_value();
          idle[static_cast<size_t>(rank)] += has ? 0 : 1;
        }
      }
      const double share = static_cast<double>(rounds) / ranks;
      for (const int its : idle)
        EXPECT_NEAR(its, share, 0.2 * share) << ranks << " ranks";
    }
  }
}

TEST(GossipExponential, HasFewPartners) {
  for (int ranks = 2; ranks <= kMaxRanks; ++ranks) {
    std::set<int> partners;
    for (uint64_t round = 0; round < 100; ++round) {
      const auto partner =
          GossipPartner({.graph = GossipGraph::kExponential, .ranks = ranks}, round, 0);
      if (partner.has_value()) partners.insert(*partner);
    }
    EXPECT_LE(static_cast<int>(partners.size()), CeilLog2(ranks)) << ranks << " ranks";
  }
}

TEST(GossipGraphs, SayWhichThereAre) {
  const auto parsed = ParseGossipGraph("star");
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(parsed.status().message()),
      testing::AllOf(testing::HasSubstr("'star'"), testing::HasSubstr("ring"),
                     testing::HasSubstr("exponential"), testing::HasSubstr("random")));
}

}  // namespace
}  // namespace syncline::collective
