#include "comm/collective/gossip/gossip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/random.h"
#include "comm/collective/gossip/consensus.h"
#include "comm/collective/group/members_test_util.h"

namespace syncline::collective {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two blocks, the second one smaller than a tile.
constexpr uint64_t kElements = uint64_t{kTilesPerBlock} * kTileElements + 1001;

std::vector<float> Drawn(uint64_t seed, uint64_t elements) {
  std::vector<float> values(elements);
  const RandomBits bits(seed, 0, 0, 0);
  for (uint32_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>(bits.At(i)) * 0x1p-31f - 1;
  }
  return values;
}

using Values = std::vector<std::vector<float>>;

// The values of all ranks after each round, or after the last one.
struct Settings {
  int ranks = 2;
  GossipGraph graph = GossipGraph::kExponential;
  std::string codec = "fp32";
  double gamma = 0;
  uint64_t rounds = 1;
  int per_host = 0;
};

struct Outcome {
  Values values = {};
  std::vector<Values> deltas = {};  // by round and rank
  std::vector<std::vector<std::optional<int>>> partners = {};
  std::vector<double> distances = {};  // by rank, at the end
  uint64_t sent_bytes = 0;
  uint64_t kept_bytes = 0;
};

Outcome Gossiped(const Settings& settings, Values start) {
  const uint64_t elements = start.front().size();
  const auto ranks = static_cast<size_t>(settings.ranks);
  Outcome outcome = {.values = std::move(start)};
  outcome.deltas.assign(settings.rounds, Values(ranks));
  outcome.partners.assign(settings.rounds, std::vector<std::optional<int>>(ranks));
  outcome.distances.resize(ranks);
  const std::vector<float> base(elements);
  const auto statuses =
      RunMembers({.ranks = settings.ranks, .per_host = settings.per_host},
                 [&](Group& group) -> absl::Status {
                   const auto self = static_cast<size_t>(group.rank());
                   auto gossip = Gossip::Create({.group = &group,
                                                 .graph = settings.graph,
                                                 .codec = settings.codec,
                                                 .elements = elements,
                                                 .gamma = settings.gamma,
                                                 .seed = 5,
                                                 .base = base});
                   SYNCLINE_RETURN_IF_ERROR(gossip.status());
                   std::vector<float>& x = outcome.values[self];
                   std::vector<float> delta(elements);
                   for (uint64_t round = 0; round < settings.rounds; ++round) {
                     const auto partner = (*gossip)->Exchange(round, x, delta);
                     SYNCLINE_RETURN_IF_ERROR(partner.status());
                     outcome.partners[round][self] = *partner;
                     outcome.deltas[round][self] = delta;
                     for (size_t i = 0; i < x.size(); ++i) x[i] += delta[i];
                   }
                   const auto distance = (*gossip)->Distance(x);
                   SYNCLINE_RETURN_IF_ERROR(distance.status());
                   outcome.distances[self] = *distance;
                   if (self == 0) outcome.sent_bytes = (*gossip)->sent_bytes();
                   if (self == 0) outcome.kept_bytes = (*gossip)->kept_bytes();
                   return absl::OkStatus();
                 });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return outcome;
}

Values DrawnFor(int ranks, uint64_t elements) {
  Values values;
  for (int rank = 0; rank < ranks; ++rank) {
    values.push_back(Drawn(100 + static_cast<uint64_t>(rank), elements));
  }
  return values;
}

// sqrt(mean over ranks of |x_r - mean|^2), computed directly.
double DistanceOf(const Values& values) {
  double square = 0;
  const auto ranks = static_cast<double>(values.size());
  for (size_t i = 0; i < values[0].size(); ++i) {
    double mean = 0;
    for (const auto& x : values) mean += double{x[i]} / ranks;
    for (const auto& x : values) square += (x[i] - mean) * (x[i] - mean) / ranks;
  }
  return std::sqrt(square);
}

std::string NameOf(const std::string& codec) {
  std::string name = codec;
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

struct Case {
  std::string codec;
  double left = 0;  // share of the distance, at most, after 60 rounds
};
void PrintTo(const Case& tried, std::ostream* out) { *out << tried.codec; }

class Codecs : public testing::TestWithParam<Case> {};

// The deltas must cancel in all bits, whatever a codec loses. This conserves the sum.
TEST_P(Codecs, GiveTwoPartnersDeltasThatCancelEachOther) {
  for (const GossipGraph graph :
       {GossipGraph::kRing, GossipGraph::kExponential, GossipGraph::kRandom}) {
    const Outcome outcome =
        Gossiped({.ranks = 5, .graph = graph, .codec = GetParam().codec, .rounds = 7},
                 DrawnFor(5, kTileElements + 9));
    for (size_t round = 0; round < outcome.deltas.size(); ++round) {
      for (size_t rank = 0; rank < 5; ++rank) {
        const auto partner = outcome.partners[round][rank];
        const auto& own = outcome.deltas[round][rank];
        const auto& its =
            outcome.deltas[round]
                          [partner.has_value() ? static_cast<size_t>(*partner) : rank];
        for (size_t i = 0; i < own.size(); ++i) {
          ASSERT_EQ(own[i], -its[i]) << "round " << round << ", rank " << rank;
        }
      }
    }
  }
}

TEST_P(Codecs, BringRanksToTheMean) {
  constexpr int kRanks = 4;
  constexpr uint64_t kFew = 2 * kTileElements;
  const Values start = DrawnFor(kRanks, kFew);
  const Outcome outcome =
      Gossiped({.ranks = kRanks, .codec = GetParam().codec, .rounds = 60}, start);
  EXPECT_LT(DistanceOf(outcome.values), GetParam().left * DistanceOf(start));
  double worst = 0;
  for (size_t i = 0; i < kFew; ++i) {
    double before = 0;
    double after = 0;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      before += double{start[rank][i]};
      after += double{outcome.values[rank][i]};
    }
    worst = std::max(worst, std::abs(after - before));
  }
  EXPECT_LT(worst, 60 * 4 * 0x1p-23) << "the rounding of an addition a round";
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {{"fp32", 1e-6},
                             {"bf16", 5e-3},
                             {"fp16", 1e-3},
                             {"int8", 1e-5},
                             {"int4", 1e-4},
                             {"onebit", 0.1},
                             {"topk:ratio=0.1", 0.2},
                             {"topk:ratio=0.1,scope=tensor", 0.2},
                             {"topk:ratio=0.1,values=int8", 0.2},
                             {"randomk:ratio=0.5", 0.01},
                             {"randomk:ratio=0.5,unbiased=1,memory=none", 0.1},
                             {"int8:dense_steps=3", 1e-5}};
#ifdef SYNCLINE_SANITIZED
  // Threads and memory are used alike with all codecs, and a sanitizer is slow.
  std::erase_if(cases, [](const Case& one) {
    return one.codec != "int8" && one.codec != "topk:ratio=0.1";
  });
#endif
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Codecs, testing::ValuesIn(Cases()),
                         [](const auto& info) { return NameOf(info.param.codec); });

TEST(Gossip, OfTwoIsTheirMean) {
  const Values start = DrawnFor(2, kElements);
  const Outcome outcome = Gossiped({.ranks = 2}, start);
  for (size_t i = 0; i < kElements; ++i) {
    const float mean = (start[0][i] + start[1][i]) / 2;
    ASSERT_NEAR(outcome.values[0][i], mean, 1e-7);
    ASSERT_NEAR(outcome.values[1][i], mean, 1e-7);
  }
}

// The whole numbers stay whole when they are halved, so no addition rounds.
TEST(Gossip, ConservesASumOfWholeNumbersExactly) {
  constexpr uint64_t kRounds = 9;
  for (const int ranks : {2, 3, 5, 8}) {
    Values start;
    for (int rank = 0; rank < ranks; ++rank) {
      start.emplace_back(1000);
      for (uint32_t i = 0; i < 1000; ++i) {
        const auto drawn = RandomBits(9, static_cast<uint64_t>(rank), 0, 0).At(i) % 4096;
        start.back()[i] = static_cast<float>(drawn << kRounds);
      }
    }
    const Outcome outcome = Gossiped(
        {.ranks = ranks, .graph = GossipGraph::kRandom, .rounds = kRounds}, start);
    for (size_t i = 0; i < 1000; ++i) {
      double before = 0;
      double after = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        before += double{start[static_cast<size_t>(rank)][i]};
        after += double{outcome.values[static_cast<size_t>(rank)][i]};
      }
      ASSERT_EQ(before, after) << ranks << " ranks, element " << i;
    }
  }
}

TEST(Gossip, GoesOverTheNetworkAsWell) {
  const Values start = DrawnFor(4, kElements);
  const Settings settings = {.ranks = 4, .codec = "int8", .rounds = 4};
  Settings apart = settings;
  apart.per_host = 2;
  EXPECT_EQ(Gossiped(settings, start).values, Gossiped(apart, start).values);
}

TEST(Gossip, TakesAnyNumberOfValues) {
  for (const uint64_t elements : {0ul, 1ul, 63ul, 65535ul, 65536ul, 65537ul, 1048577ul}) {
    for (const char* codec : {"fp32", "int8"}) {
      const Outcome outcome =
          Gossiped({.ranks = 3, .graph = GossipGraph::kRing, .codec = codec, .rounds = 4},
                   DrawnFor(3, elements));
      EXPECT_EQ(outcome.values[0].size(), elements);
    }
  }
}

TEST(Gossip, SendsAndKeepsWhatItSays) {
  const Values start = DrawnFor(4, kElements);
  const Outcome dense = Gossiped({.ranks = 4, .codec = "bf16", .rounds = 4}, start);
  EXPECT_NEAR(static_cast<double>(dense.sent_bytes), 4 * 2.0 * kElements,
              0.01 * 8 * kElements);
  EXPECT_EQ(dense.kept_bytes, 0u);
  const Outcome int8 = Gossiped({.ranks = 4, .codec = "int8", .rounds = 4}, start);
  EXPECT_NEAR(static_cast<double>(int8.sent_bytes), 4 * 1.0 * kElements,
              0.1 * 4 * kElements);
  // The base, and two copies for each of the ranks 1 and 2.
  EXPECT_EQ(int8.kept_bytes, 5 * 4 * kElements);
}

TEST(Gossip, SaysHowFarRanksAreApart) {
  for (const uint64_t elements : {uint64_t{1}, uint64_t{4096}, kElements}) {
    const Values start = DrawnFor(5, elements);
    const Outcome outcome = Gossiped({.ranks = 5, .rounds = 0}, start);
    const double wanted = DistanceOf(start);
    const double within = elements <= kSketchSums ? 1e-9 : 0.04;
    EXPECT_NEAR(outcome.distances[0], wanted, within * wanted) << elements << " values";
    for (const double distance : outcome.distances) {
      EXPECT_EQ(distance, outcome.distances[0]);
    }
  }
}

TEST(Gossip, StepsLessFarWhereLessIsSaid) {
  const auto gamma = [](const char* codec) {
    return Gossip::DefaultGamma(codec).value();
  };
  EXPECT_EQ(gamma("fp32"), 0.5);
  EXPECT_EQ(gamma("int8"), 0.5);
  EXPECT_EQ(gamma("onebit"), 0.35);
  EXPECT_NEAR(gamma("topk:ratio=0.01"), 0.05, 1e-9);
  EXPECT_NEAR(gamma("randomk:ratio=0.5"), 0.1, 1e-9);
}

TEST(Gossip, NamesThePartnerThatMeansAnother) {
  const std::vector<float> zeros(1000);
  const std::vector<float> ones(1000, 1);
  const std::vector<std::function<void(GossipOptions&)>> changes = {
      [](GossipOptions& options) { options.codec = "int4"; },
      [](GossipOptions& options) { options.elements = 999; },
      [](GossipOptions& options) { options.gamma = 0.25; },
      [](GossipOptions& options) { options.seed = 1; },
      [](GossipOptions& options) { options.graph = GossipGraph::kRing; },
      [&](GossipOptions& options) { options.base = ones; }};
  for (const auto& change : changes) {
    const auto statuses = RunMembers({.ranks = 2}, [&](Group& group) -> absl::Status {
      GossipOptions options = {.group = &group, .codec = "int8", .elements = 1000};
      options.base = zeros;
      if (group.rank() == 1) change(options);
      options.base = options.base.first(options.elements);
      auto gossip = Gossip::Create(options);
      SYNCLINE_RETURN_IF_ERROR(gossip.status());
      std::vector<float> values(options.elements, 1);
      std::vector<float> delta(options.elements);
      const absl::Status status = (*gossip)->Exchange(0, values, delta).status();
      EXPECT_EQ((*gossip)->Exchange(1, values, delta).status(), status) << "it stays so";
      return status;
    });
    // The rank that detects it first ends the group.
    const bool first = absl::IsFailedPrecondition(statuses[0]);
    EXPECT_TRUE(first || absl::IsFailedPrecondition(statuses[1])) << statuses[0];
    EXPECT_EQ(FailedRank(statuses[first ? 0 : 1]), first ? 1 : 0);
    EXPECT_FALSE(statuses[0].ok() || statuses[1].ok());
  }
}

TEST(Gossip, RefusesWhatCannotBe) {
  for (const char* codec : {"auto", "powersgd:rank=4", "signsgd", "onebitt",
                            "onebit:min_elements=100", "topk:vectors=1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Gossip::Check(codec, 0.5))) << codec;
    EXPECT_TRUE(absl::IsInvalidArgument(Gossip::DefaultGamma(codec).status())) << codec;
  }
  for (const double gamma : {0.0, -0.5, 1.01, std::numeric_limits<double>::quiet_NaN()}) {
    const absl::Status status = Gossip::Check("fp32", gamma);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << gamma;
    EXPECT_THAT(std::string(status.message()), HasSubstr("above 0 and at most 1"));
  }
  EXPECT_TRUE(Gossip::Check("onebit", 1).ok());
  const auto statuses = RunMembers({.ranks = 1}, [&](Group& group) -> absl::Status {
    const auto made = Gossip::Create({.group = &group, .codec = "int8", .elements = 10});
    EXPECT_TRUE(absl::IsInvalidArgument(made.status())) << "without a base";
    auto gossip = Gossip::Create({.group = &group, .elements = 10});
    SYNCLINE_RETURN_IF_ERROR(gossip.status());
    std::vector<float> values(11);
    const absl::Status status = (*gossip)->Exchange(0, values, values).status();
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("10"), HasSubstr("11")));
    values.assign(10, 1);
    EXPECT_EQ((*gossip)->Exchange(0, values, values).value(), std::nullopt);
    EXPECT_EQ(values, std::vector<float>(10)) << "alone there is nothing to add";
    return absl::OkStatus();
  });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
}

// Within a host, a rank that leaves is detected at once.
TEST(Gossip, EndsOnAllWhenOneLeaves) {
  const auto statuses = RunMembers({.ranks = 4}, [&](Group& group) -> absl::Status {
    auto gossip = Gossip::Create({.group = &group, .elements = kElements});
    SYNCLINE_RETURN_IF_ERROR(gossip.status());
    std::vector<float> values = Drawn(1, kElements);
    std::vector<float> delta(kElements);
    for (uint64_t round = 0; round < 100; ++round) {
      if (group.rank() == 2 && round == 3) return absl::OkStatus();
      SYNCLINE_RETURN_IF_ERROR((*gossip)->Exchange(round, values, delta).status());
    }
    return absl::OkStatus();
  });
  for (const size_t rank : {0, 1, 3}) {
    EXPECT_FALSE(statuses[rank].ok());
    EXPECT_EQ(FailedRank(statuses[rank]), 2) << "rank " << rank << ": " << statuses[rank];
  }
  EXPECT_TRUE(statuses[2].ok());
}

}  // namespace
}  // namespace syncline::collective
