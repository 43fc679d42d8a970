#include "comm/collective/compressed/compressed_all_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/random.h"
#include "comm/collective/group/members_test_util.h"

namespace syncline::collective {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Several rounds, the last one with blocks of different lengths.
constexpr uint64_t kElements = 5 * kTilesPerBlock * kTileElements + 3 * kTileElements + 7;

std::vector<float> Gradient(int rank, uint64_t step, uint64_t elements) {
  std::vector<float> values(elements);
  const RandomBits bits(static_cast<uint64_t>(rank), step, 0, 0);
  for (uint32_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>(bits.At(i)) * 0x1p-31f - 1;
  }
  return values;
}

std::vector<double> PlainMean(int ranks, uint64_t step, uint64_t elements) {
  std::vector<double> mean(elements);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = Gradient(rank, step, elements);
    for (uint64_t i = 0; i < elements; ++i) mean[i] += double{values[i]} / ranks;
  }
  return mean;
}

using Values = std::vector<std::vector<float>>;

// The sums of each rank's results over `steps` calls and `still` further calls with zero
// input.
struct Sums {
  Values of_rank;
  uint64_t sent_bytes = 0;
};

Sums SumsOf(int ranks, const std::string& codec, uint64_t elements, uint64_t steps,
            uint64_t still = 0) {
  Sums sums;
  sums.of_rank.resize(static_cast<size_t>(ranks));
  const auto statuses = RunMembers({.ranks = ranks}, [&](Group& group) -> absl::Status {
    auto reduce = CompressedAllReduce::Create(
        {.group = &group, .codec = codec, .elements = elements, .seed = 5});
    SYNCLINE_RETURN_IF_ERROR(reduce.status());
    std::vector<float>& sum = sums.of_rank[static_cast<size_t>(group.rank())];
    sum.resize(elements);
    for (uint64_t step = 0; step < steps + still; ++step) {
      std::vector<float> values(elements);
      if (step < steps) values = Gradient(group.rank(), step, elements);
      SYNCLINE_RETURN_IF_ERROR((*reduce)->Mean(values));
      for (uint64_t i = 0; i < elements; ++i) sum[i] += values[i];
    }
    if (group.rank() == 0) sums.sent_bytes = (*reduce)->sent_bytes();
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return sums;
}

// Returns the sum of the mean inputs of the first `steps`.
std::vector<double> PlainSum(int ranks, uint64_t elements, uint64_t steps) {
  std::vector<double> sum(elements);
  for (uint64_t step = 0; step < steps; ++step) {
    const std::vector<double> mean = PlainMean(ranks, step, elements);
    for (uint64_t i = 0; i < elements; ++i) sum[i] += mean[i];
  }
  return sum;
}

double RelativeError(std::span<const float> values, std::span<const double> wanted) {
  double error = 0;
  double square = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(values[i] - wanted[i], 2);
    square += std::pow(wanted[i], 2);
  }
  return std::sqrt(error / square);
}

void ExpectTheSameBits(const Sums& sums) {
  for (const std::vector<float>& sum : sums.of_rank) ASSERT_EQ(sum, sums.of_rank[0]);
}

struct Case {
  std::string codec;
  // Error of the final sum, relative to what was given.
  double error = 1e-2;
};
void PrintTo(const Case& tried, std::ostream* out) { *out << tried.codec; }

class Codecs : public testing::TestWithParam<Case> {};

// Losses of an encoding arrive later: in the end nothing that was given may be missing.
TEST_P(Codecs, DeliverAllThatWasGivenWithTheSameBitsOnAllRanks) {
  constexpr uint64_t kFew = 4 * kTileElements + 100;
  const Sums sums = SumsOf(3, GetParam().codec, kFew, 5, /*still=*/60);
  ExpectTheSameBits(sums);
  EXPECT_LT(RelativeError(sums.of_rank[0], PlainSum(3, kFew, 5)), GetParam().error);
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {{"fp32", 1e-6},
                             {"bf16"},
                             {"fp16", 1e-3},
                             {"int8"},
                             {"int4"},
                             {"onebit", 0.05},
                             {"topk:ratio=0.1"},
                             {"topk:ratio=0.1,scope=tensor"},
                             {"topk:ratio=0.1,values=int8"},
                             {"randomk:ratio=0.5"},
                             {"natural", 0.6}};  // correct only in the mean
#ifdef SYNCLINE_SANITIZED
  // Threads and memory are used alike with all codecs, and a sanitizer is slow.
  std::erase_if(cases, [](const Case& one) {
    return one.codec != "int8" && one.codec != "topk:ratio=0.1";
  });
#endif
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Codecs, testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = info.param.codec;
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

// Each round has its own memory for values and for means.
TEST(CompressedAllReduce, DeliversAllOfSeveralRounds) {
  constexpr uint64_t kTwoRounds = 3 * kTilesPerBlock * kTileElements + kTileElements + 5;
  const Sums sums = SumsOf(2, "topk:ratio=0.2", kTwoRounds, 1, /*still=*/25);
  ExpectTheSameBits(sums);
  EXPECT_LT(RelativeError(sums.of_rank[0], PlainSum(2, kTwoRounds, 1)), 1e-2);
}

// Momentum multiplies the result, by at most ten.
TEST(CompressedAllReduce, CorrectsMomentumOnTheWayToTheMean) {
  constexpr uint64_t kFew = kTileElements;
  const Sums sums = SumsOf(2, "dgc:ratio=0.1,momentum=0.9", kFew, 5, /*still=*/60);
  ExpectTheSameBits(sums);
  const std::vector<double> wanted = PlainSum(2, kFew, 5);
  double product = 0;
  double square = 0;
  for (size_t i = 0; i < kFew; ++i) {
    product += sums.of_rank[0][i] * wanted[i];
    square += wanted[i] * wanted[i];
  }
  EXPECT_GT(product / square, 1.1);
  EXPECT_LT(product / square, 10);
}

TEST(CompressedAllReduce, FirstStepsMayBeDense) {
  constexpr uint64_t kFew = 2 * kTileElements;
  const uint64_t dense = SumsOf(2, "bf16", kFew, 2).sent_bytes;
  EXPECT_EQ(SumsOf(2, "onebit:dense_steps=2", kFew, 2).sent_bytes, dense);
  EXPECT_LT(static_cast<double>(SumsOf(2, "onebit:dense_steps=2", kFew, 3).sent_bytes),
            1.1 * static_cast<double>(dense));
}

TEST(CompressedAllReduce, IsThePlainMeanInFp32) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Sums sums = SumsOf(ranks, "fp32", kElements, 1);
    const std::vector<double> mean = PlainMean(ranks, 0, kElements);
    for (const std::vector<float>& sum : sums.of_rank) {
      double worst = 0;
      for (uint64_t i = 0; i < kElements; ++i) {
        worst = std::max(worst, std::abs(sum[i] - mean[i]));
      }
      EXPECT_LT(worst, 1e-6) << ranks << " ranks";
    }
  }
}

TEST(CompressedAllReduce, TakesAnyNumberOfValues) {
  for (const uint64_t elements : {0ul, 1ul, 63ul, 65535ul, 65536ul, 65537ul, 200000ul}) {
    const Sums sums = SumsOf(4, "fp32", elements, 2);
    for (const std::vector<float>& sum : sums.of_rank) {
      ASSERT_EQ(sum, sums.of_rank[0]) << elements;
    }
  }
}

// Error feedback in both directions bounds what is missing of a constant gradient, so the
// mean over steps comes close to it. Without a memory the error would stay.
TEST(CompressedAllReduce, SendsAllOfAConstantGradientInTheEnd) {
  constexpr uint64_t kFew = kTileElements;
  constexpr int kSteps = 400;
  const auto error_with = [&](const std::string& codec) {
    double error = 0;
    const auto statuses = RunMembers({.ranks = 2}, [&](Group& group) -> absl::Status {
      auto reduce = CompressedAllReduce::Create(
          {.group = &group, .codec = codec, .elements = kFew});
      SYNCLINE_RETURN_IF_ERROR(reduce.status());
      std::vector<double> sum(kFew);
      for (int step = 0; step < kSteps; ++step) {
        std::vector<float> values = Gradient(group.rank(), 0, kFew);
        SYNCLINE_RETURN_IF_ERROR((*reduce)->Mean(values));
        for (uint64_t i = 0; i < kFew; ++i) sum[i] += values[i];
      }
      if (group.rank() != 0) return absl::OkStatus();
      const std::vector<double> mean = PlainMean(2, 0, kFew);
      for (uint64_t i = 0; i < kFew; ++i) {
        error = std::max(error, std::abs(sum[i] / kSteps - mean[i]));
      }
      return absl::OkStatus();
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    return error;
  };
  EXPECT_LT(error_with("onebit"), 0.2);
  EXPECT_GT(error_with("onebit:memory=none"), 0.3);
}

TEST(CompressedAllReduce, SendsWhatItsCodecNeeds) {
  constexpr uint64_t kMany = 4 * kTilesPerBlock * kTileElements;
  const uint64_t dense = SumsOf(2, "fp32", kMany, 1).sent_bytes;
  const uint64_t signs = SumsOf(2, "onebit", kMany, 1).sent_bytes;
  EXPECT_NEAR(static_cast<double>(dense), 4.0 * kMany, 0.01 * 4.0 * kMany);
  EXPECT_LT(signs, dense / 25);
}

// A tile that holds NaN is sent densely, and nothing of it is kept.
TEST(CompressedAllReduce, PassesNanOnAndForgetsIt) {
  const auto statuses = RunMembers({.ranks = 2}, [&](Group& group) -> absl::Status {
    auto reduce = CompressedAllReduce::Create(
        {.group = &group, .codec = "onebit", .elements = kTileElements});
    SYNCLINE_RETURN_IF_ERROR(reduce.status());
    std::vector<float> values = Gradient(group.rank(), 0, kTileElements);
    if (group.rank() == 1) values[17] = std::numeric_limits<float>::quiet_NaN();
    SYNCLINE_RETURN_IF_ERROR((*reduce)->Mean(values));
    EXPECT_TRUE(std::isnan(values[17]));
    values = Gradient(group.rank(), 1, kTileElements);
    SYNCLINE_RETURN_IF_ERROR((*reduce)->Mean(values));
    EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return std::isfinite(x); }));
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(CompressedAllReduce, NamesTheRankThatMeansAnother) {
  const std::vector<std::function<void(CompressedOptions&)>> changes = {
      [](CompressedOptions& options) { options.codec = "int8"; },
      [](CompressedOptions& options) { options.elements = 1001; },
      [](CompressedOptions& options) { options.elements = 0; },
      [](CompressedOptions& options) { options.seed = 1; }};
  for (const auto& change : changes) {
    const auto statuses = RunMembers({.ranks = 3}, [&](Group& group) -> absl::Status {
      CompressedOptions options = {.group = &group, .elements = 1000};
      if (group.rank() == 1) change(options);
      auto reduce = CompressedAllReduce::Create(options);
      SYNCLINE_RETURN_IF_ERROR(reduce.status());
      std::vector<float> values(options.elements, 1);
      const absl::Status status = (*reduce)->Mean(values);
      EXPECT_EQ((*reduce)->Mean(values), status) << "and it stays so";
      return status;
    });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    }
    EXPECT_EQ(FailedRank(statuses[0]), 1);
    EXPECT_EQ(FailedRank(statuses[2]), 1);
    EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 1"));
  }
}

TEST(CompressedAllReduce, RefusesWhatCannotBe) {
  const auto statuses = RunMembers({.ranks = 1}, [&](Group& group) -> absl::Status {
    for (const char* codec : {"auto", "powersgd:rank=4", "signsgd", "onebitt",
                              "onebit:min_elements=100", "topk:vectors=1"}) {
      EXPECT_FALSE(CompressedAllReduce::CheckCodec(codec).ok()) << codec;
      const auto made = CompressedAllReduce::Create(
          {.group = &group, .codec = codec, .elements = 1 << 20});
      EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << codec;
    }
    auto reduce = CompressedAllReduce::Create({.group = &group, .elements = 10});
    SYNCLINE_RETURN_IF_ERROR(reduce.status());
    std::vector<float> values(11);
    const absl::Status status = (*reduce)->Mean(values);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("10"), HasSubstr("11")));
    return absl::OkStatus();
  });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
}

TEST(CompressedAllReduce, EndsOnAllWhenOneLeaves) {
  const auto statuses = RunMembers({.ranks = 3}, [&](Group& group) -> absl::Status {
    auto reduce = CompressedAllReduce::Create(
        {.group = &group, .codec = "onebit", .elements = kElements});
    SYNCLINE_RETURN_IF_ERROR(reduce.status());
    for (int step = 0; step < 100; ++step) {
      if (group.rank() == 2 && step == 3) return absl::OkStatus();
      std::vector<float> values = Gradient(group.rank(), 0, kElements);
      SYNCLINE_RETURN_IF_ERROR((*reduce)->Mean(values));
    }
    return absl::OkStatus();
  });
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_TRUE(statuses[2].ok());
}

}  // namespace
}  // namespace syncline::collective
