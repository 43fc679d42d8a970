#include "comm/codec/sparse/selector.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "comm/codec/sparse/magnitude.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Indices = std::vector<uint16_t>;

Indices Selected(const SelectorSpec& spec, const std::vector<float>& values,
                 const EncodeContext& context = {}) {
  const Selection selection = Select(spec, values, context);
  const std::span<const uint16_t> view = selection.indices.view();
  EXPECT_LE(view.size(), MaxSelected(spec, static_cast<uint32_t>(values.size())));
  return {view.begin(), view.end()};
}

// The definition: sort by magnitude, then by position; take the first k without zeros.
Indices SortedTopK(const std::vector<float>& values, uint32_t k) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](uint32_t i) { return std::abs(values[i]); });
  order.resize(std::min<size_t>(k, order.size()));
  Indices top;
  for (const uint32_t i : order) {
    if (values[i] != 0) top.push_back(static_cast<uint16_t>(i));
  }
  std::ranges::sort(top);
  return top;
}

// The same for each chunk of 2^n elements.
Indices SortedTopKOfChunks(const std::vector<float>& values, uint32_t chunk_log2,
                           double ratio) {
  const size_t chunk = size_t{1} << chunk_log2;
  Indices top;
  for (size_t first = 0; first < values.size(); first += chunk) {
    const size_t n = std::min(chunk, values.size() - first);
    const std::vector<float> part(values.begin() + static_cast<ptrdiff_t>(first),
                                  values.begin() + static_cast<ptrdiff_t>(first + n));
    const double k = std::max(1.0, std::floor(ratio * static_cast<double>(n)));
    for (const uint16_t i : SortedTopK(part, static_cast<uint32_t>(k))) {
      top.push_back(static_cast<uint16_t>(first + i));
    }
  }
  return top;
}

struct Input {
  const char* name = "";
  std::function<float(uint32_t i, std::mt19937& random)> value = nullptr;
};

const std::vector<Input>& Inputs() {
  static const auto normal = [](std::mt19937& random) {
    return std::normal_distribution<float>()(random);
  };
  static const std::vector<Input> inputs = {
      {"Gaussian", [](uint32_t, std::mt19937& random) { return normal(random); }},
      {"heavy-tailed",
       [](uint32_t, std::mt19937& random) {
         return normal(random) * std::exp(6 * normal(random));
       }},
      {"few distinct magnitudes",
       [](uint32_t, std::mt19937& random) {
         return static_cast<float>(random() % 7) - 3;
       }},
      {"all equal", [](uint32_t i, std::mt19937&) { return i % 2 == 0 ? 0.5f : -0.5f; }},
      {"zeros of both signs",
       [](uint32_t i, std::mt19937&) { return i % 2 == 0 ? 0.0f : -0.0f; }},
      {"denormals",
       [](uint32_t, std::mt19937& random) {
         return std::bit_cast<float>(static_cast<uint32_t>(random() % 9));
       }},
      {"one in a hundred",
       [](uint32_t, std::mt19937& random) {
         return random() % 100 == 0 ? normal(random) : 0.0f;
       }},
      {"up to overflow",
       [](uint32_t, std::mt19937& random) {
         return std::ldexp(normal(random), static_cast<int>(random() % 270) - 145);
       }},
      // All values at sampled positions are large and the others small, and the reverse.
      {"sample too large",
       [](uint32_t i, std::mt19937& random) {
         return i % 61 == 30 ? 5 + normal(random) : 0.001f * normal(random);
       }},
      {"sample too small",
       [](uint32_t i, std::mt19937& random) {
         return i % 61 == 30 ? 0.0f : normal(random);
       }},
  };
  return inputs;
}

std::vector<float> Make(const Input& input, uint32_t n) {
  std::mt19937 random(n + 1);
  std::vector<float> values(n);
  for (uint32_t i = 0; i < n; ++i) values[i] = input.value(i, random);
  return values;
}

std::vector<float> Gaussian(uint32_t n) { return Make(Inputs()[0], n); }

std::vector<uint32_t> Sizes() {
  std::vector<uint32_t> sizes(258);
  std::iota(sizes.begin(), sizes.end(), 0u);
  sizes.insert(sizes.end(), {4095, 4096, 4097, 65535, 65536});
  return sizes;
}

TEST(TopK, OfChunksTakesWhatSortingEachChunkTakes) {
  for (const Input& input : Inputs()) {
    for (const uint32_t n : Sizes()) {
      const std::vector<float> values = Make(input, n);
      for (const uint32_t chunk_log2 : {8u, 12u}) {
        for (const double ratio : {0.001, 1.0 / 64, 0.3}) {
          const SelectorSpec spec = {.ratio = ratio, .chunk_log2 = chunk_log2};
          ASSERT_EQ(Selected(spec, values), SortedTopKOfChunks(values, chunk_log2, ratio))
              << input.name << " " << n << " " << ratio << " 2^" << chunk_log2;
        }
      }
    }
  }
}

TEST(TopK, OfChunksNeverSendsMoreThanIsAnnouncedAndChecksItsChunks) {
  const SelectorSpec most = {.ratio = 0.5, .chunk_log2 = 8};
  EXPECT_EQ(Selected(most, Gaussian(65536)).size(), 32768u);
  EXPECT_EQ(MaxSelected(most, 65536), 32768u);
  EXPECT_EQ(MaxSelected({.ratio = 1.0 / 64, .chunk_log2 = 12}, 65536), 1024u);
  EXPECT_FALSE(CheckSelector({.chunk_log2 = 7}).ok());
  EXPECT_FALSE(CheckSelector({.chunk_log2 = 17}).ok());
  EXPECT_FALSE(CheckSelector({.scope = SelectorScope::kTensor, .chunk_log2 = 12}).ok());
  EXPECT_FALSE(CheckSelector({.kind = SelectorKind::kRandomK, .chunk_log2 = 12}).ok());
}

TEST(TopK, TakesWhatSortingTakes) {
  for (const Input& input : Inputs()) {
    for (const uint32_t n : Sizes()) {
      const std::vector<float> values = Make(input, n);
      for (const double ratio : {0.001, 0.01, 0.3, 0.9}) {
        const SelectorSpec spec = {.kind = SelectorKind::kTopK, .ratio = ratio};
        ASSERT_EQ(Selected(spec, values),
                  SortedTopK(values, static_cast<uint32_t>(TopCount(spec, n, 0))))
            << input.name << " " << n << " " << ratio;
      }
    }
  }
}

TEST(TopK, KeepsLowestIndexOnTies) {
  EXPECT_THAT(Selected({.ratio = 0.5}, {1, -2, 2, 2, -2, 3}), ElementsAre(1, 2, 5));
}

TEST(TopK, TakesAtLeastOneAndNoZeros) {
  EXPECT_THAT(Selected({.ratio = 1e-9}, {0, 0, 1e-40f, 0}), ElementsAre(2));
  EXPECT_THAT(Selected({.ratio = 0.9}, {0, -0.0f, 0, 0}), IsEmpty());
  EXPECT_EQ(TopCount({.ratio = 0.01}, 65536, 0), 655u);
  EXPECT_EQ(TopCount({.ratio = 0.01}, 0, 0), 0u);
}

TEST(TopK, TakesAllWhenThatIsNearlyAll) {
  const std::vector<float> values = Gaussian(1000);
  EXPECT_THAT(Selected({.ratio = 0.99}, values), SizeIs(1000));
  EXPECT_THAT(Selected({.ratio = 0.96}, values), SizeIs(960));
}

TEST(TopK, LeavesNothingLargerBehindWhenTheThresholdIsSampledOrReused) {
  for (const SelectorKind kind : {SelectorKind::kTopKSampled, SelectorKind::kTopKReuse}) {
    for (const Input& input : Inputs()) {
      for (const uint32_t n : Sizes()) {
        const std::vector<float> values = Make(input, n);
        const SelectorSpec spec = {.kind = kind, .ratio = 0.02};
        float memory = 0.1f;
        const Indices found = Selected(spec, values, {.step = 1, .memory = {&memory, 1}});
        const auto count = static_cast<uint32_t>(found.size());
        // They are the largest values, whatever their number.
        float smallest = std::numeric_limits<float>::infinity();
        for (const uint16_t i : found) smallest = std::min(smallest, std::abs(values[i]));
        std::set<uint16_t> sent(found.begin(), found.end());
        for (uint32_t i = 0; i < n; ++i) {
          if (!sent.contains(static_cast<uint16_t>(i))) {
            ASSERT_LE(std::abs(values[i]), smallest) << input.name << " " << n;
          }
        }
        const auto wanted = static_cast<uint32_t>(
            SortedTopK(values, static_cast<uint32_t>(TopCount(spec, n, 0)))
                .size());  // fewer if the rest is zero
        ASSERT_GE(count, (wanted + 1) / 2) << input.name << " " << n;
        ASSERT_LE(count, 2 * static_cast<uint32_t>(TopCount(spec, n, 0)))
            << input.name << " " << n;
      }
    }
  }
}

TEST(TopKReuse, KeepsItsThresholdForAPeriodAndNoLonger) {
  const SelectorSpec spec = {
      .kind = SelectorKind::kTopKReuse, .ratio = 0.01, .period = 4};
  const std::vector<float> values = Gaussian(65536);
  std::vector<float> larger = values;
  for (float& value : larger) value *= 1.05f;
  float memory = 0;
  const Indices exact = Selected(spec, values, {.step = 1, .memory = {&memory, 1}});
  EXPECT_EQ(exact, SortedTopK(values, 655));
  const float threshold = memory;
  EXPECT_GT(threshold, 2.0f);
  for (const uint64_t step : {1, 2, 3}) {
    EXPECT_THAT(Selected(spec, larger, {.step = step, .memory = {&memory, 1}}),
                SizeIs(::testing::Gt(655u)));
    EXPECT_EQ(memory, threshold);
  }
  EXPECT_THAT(Selected(spec, larger, {.step = 4, .memory = {&memory, 1}}), SizeIs(655));
  EXPECT_FLOAT_EQ(memory, 1.05f * threshold);
  // The next tile takes its turn one step earlier.
  memory = threshold;
  Selected(spec, larger,
           {.step = 3, .first_element = kTileElements, .memory = {&memory, 1}});
  EXPECT_FLOAT_EQ(memory, 1.05f * threshold);
}

TEST(TopKReuse, RenewsAThresholdThatFindsTooFewOrTooMany) {
  const SelectorSpec spec = {.kind = SelectorKind::kTopKReuse, .ratio = 0.01};
  const std::vector<float> values = Gaussian(65536);
  for (const float useless : {0.0f, 0.1f, 100.0f, -3e38f}) {
    float memory = useless;
    EXPECT_EQ(Selected(spec, values, {.step = 1, .memory = {&memory, 1}}),
              SortedTopK(values, 655));
    EXPECT_GT(memory, 2.0f);
    EXPECT_LT(memory, 3.0f);
  }
  EXPECT_EQ(Selected(spec, values, {.step = 1}), SortedTopK(values, 655)) << "no memory";
}

TEST(TopK, OfATensorTakesWhatReachesTheThreshold) {
  const SelectorSpec spec = {.ratio = 0.25, .scope = SelectorScope::kTensor};
  const std::vector<float> values = {1, -2, 0, 3, -4, 2, 1.5f, 0};
  EXPECT_THAT(Selected(spec, values, {.threshold = 2}), ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(Selected(spec, values, {.threshold = 5}), IsEmpty());
  EXPECT_THAT(Selected(spec, values), ElementsAre(3, 4)) << "not known: by tile";
  EXPECT_THAT(Selected({.ratio = 0.25}, values, {.threshold = 2}), ElementsAre(3, 4))
      << "of a tile";
  const std::vector<float> ones(1000, 1.0f);
  EXPECT_THAT(Selected(spec, ones, {.threshold = 1}), SizeIs(1000));
  EXPECT_EQ(MaxSelected(spec, 1000), 1000u);
}

// The schedule of the paper's code: 25 % falls to 0.1 % by the same factor at each step.
TEST(RatioWarmup, FallsExponentially) {
  const SelectorSpec spec = {.ratio = 0.001,
                             .warmup = {.steps = 4, .ratio = 0.25, .first_step = 10}};
  const double factor = std::pow(0.001 / 0.25, 0.25);
  double want = 0.25;
  for (const uint64_t step : {10, 11, 12, 13}) {
    EXPECT_NEAR(RatioAt(spec, step), want, 1e-8 * want) << step;
    want *= factor;
  }
  for (const uint64_t step : {0, 9}) EXPECT_EQ(RatioAt(spec, step), 0.25) << step;
  for (const uint64_t step : {uint64_t{14}, uint64_t{15}, ~uint64_t{0}}) {
    EXPECT_EQ(RatioAt(spec, step), 0.001);
  }
  EXPECT_EQ(RatioAt({.ratio = 0.5}, 0), 0.5);
  EXPECT_EQ(TopCount(spec, 65536, 10), 16384u);
  EXPECT_EQ(TopCount(spec, 65536, 14), 65u);
  EXPECT_EQ(TopCount(spec, uint64_t{1} << 33, 10), uint64_t{1} << 31) << "of a tensor";
}

TEST(RatioWarmup, HoldsForEverySelectorWithARatio) {
  for (const SelectorKind kind :
       {SelectorKind::kTopK, SelectorKind::kTopKSampled, SelectorKind::kTopKReuse,
        SelectorKind::kRandomK, SelectorKind::kProportional}) {
    const SelectorSpec spec = {
        .kind = kind, .ratio = 0.01, .warmup = {.steps = 100, .ratio = 0.6}};
    const std::vector<float> values = Gaussian(65536);
    float memory = 0;
    size_t last = 65536;
    for (const uint64_t step : {0, 1, 20, 50, 90, 100, 101}) {
      const size_t count =
          Selected(spec, values, {.step = step, .memory = {&memory, 1}}).size();
      const auto k = static_cast<double>(TopCount(spec, 65536, step));
      EXPECT_GE(static_cast<double>(count), k / 2) << step;
      EXPECT_LE(static_cast<double>(count), 2 * k) << step;
      EXPECT_LE(count, last + last / 4) << step;
      last = count;
    }
    EXPECT_LE(last, 2 * 655u);
  }
}

TEST(Threshold, TakesWhatIsAboveIt) {
  const float tau = 0.5f;
  const float above = std::nextafter(tau, 1.0f);
  const SelectorSpec spec = {.kind = SelectorKind::kThreshold, .threshold = tau};
  EXPECT_THAT(Selected(spec, {tau, -above, above, -tau, 0, 7}), ElementsAre(1, 2, 5));
  const SelectorSpec zero = {.kind = SelectorKind::kThreshold, .threshold = 0};
  EXPECT_THAT(Selected(zero, {0, -0.0f, 1e-45f, -1e-45f}), ElementsAre(2, 3));
  for (const uint32_t n : Sizes()) {
    const std::vector<float> values = Gaussian(n);
    Indices want;
    for (uint32_t i = 0; i < n; ++i) {
      if (std::abs(values[i]) > tau) want.push_back(static_cast<uint16_t>(i));
    }
    // Among few values these may be nearly all; then all are sent.
    if (want.size() <= LargestListed(n)) {
      ASSERT_EQ(Selected(spec, values), want) << n;
    }
  }
}

TEST(Blocks, TakesAllOfEachBlockThatIsNotAllZero) {
  std::vector<float> values(1000);
  values[300] = 1;
  values[999] = -0.0f;  // not +0
  Indices want(512);
  std::iota(want.begin(), want.begin() + 256, uint16_t{256});
  std::iota(want.begin() + 256, want.end(), uint16_t{768});
  want.resize(256 + 232);
  EXPECT_EQ(Selected({.kind = SelectorKind::kBlocks}, values), want);
  EXPECT_THAT(Selected({.kind = SelectorKind::kBlocks}, std::vector<float>(777)),
              IsEmpty());
}

Selection Proportionally(double ratio, const std::vector<float>& values,
                         const EncodeContext& context = {}) {
  return Select({.kind = SelectorKind::kProportional, .ratio = ratio}, values, context);
}

// A third of 12 is 4: the 9 is sure, and 3 of the others share 12, so t = 4.
TEST(Proportional, TakesEachValueAsOftenAsItsMagnitudeSays) {
  const std::vector<float> values = {1, -1, 9, 0, 2, 2, -2, 1, 0, -1, 1, 1};
  constexpr int kDraws = 40'000;
  std::vector<int> taken(values.size());
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    const Selection selection = Proportionally(0.34, values, {.step = draw});
    EXPECT_EQ(selection.least, 4.0f);
    EXPECT_EQ(selection.indices.count(), 4u);
    for (const uint16_t i : selection.indices.view()) ++taken[i];
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const double p = std::min(1.0, std::abs(values[i]) / 4.0);
    EXPECT_NEAR(taken[i], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << i;
  }
}

TEST(Proportional, TakesKOrOneMore) {
  for (const uint32_t n : Sizes()) {
    for (const double ratio : {0.01, 0.1, 0.5}) {
      for (uint64_t step = 0; step < 5; ++step) {
        const SelectorSpec spec = {.kind = SelectorKind::kProportional, .ratio = ratio};
        const std::vector<float> values = Gaussian(n);
        const Indices found = Selected(spec, values, {.step = step});
        ASSERT_LE(found.size(), MaxSelected(spec, n)) << n;
        if (n > 0) {
          ASSERT_GE(found.size() + 1, TopCount(spec, n, 0)) << n;
        }
      }
    }
  }
}

TEST(Proportional, TakesFewValuesAsTheyAreAndZerosNever) {
  std::vector<float> values(1000);
  EXPECT_THAT(Proportionally(0.01, values).indices.view(), IsEmpty());
  for (const uint32_t i : {7u, 8u, 900u}) values[i] = static_cast<float>(i);
  const Selection few = Proportionally(0.01, values);
  EXPECT_THAT(few.indices.view(), ElementsAre(7, 8, 900));
  EXPECT_LE(few.least, 7.0f);
  // This many positions cost too much, so all values are sent unchanged.
  const Selection all = Proportionally(0.99, values);
  EXPECT_THAT(all.indices.view(), SizeIs(1000));
  EXPECT_EQ(all.least, 0.0f);
}

TEST(Proportional, DrawsAnewForEachWorkerStepTensorAndTile) {
  const std::vector<float> values = Gaussian(65536);
  const auto of = [&](const EncodeContext& context) {
    return Selected({.kind = SelectorKind::kProportional, .ratio = 0.01}, values,
                    context);
  };
  EXPECT_EQ(of({.seed = 1}), of({.seed = 1}));
  for (const EncodeContext& other :
       {EncodeContext{.seed = 2}, EncodeContext{.seed = 1, .step = 1},
        EncodeContext{.seed = 1, .tensor = 1},
        EncodeContext{.seed = 1, .first_element = 65536}}) {
    EXPECT_NE(of({.seed = 1}), of(other));
  }
}

TEST(RandomK, TakesDistinctPositionsInOrder) {
  for (const uint32_t n : Sizes()) {
    for (const double ratio : {0.01, 0.5, 1.0}) {
      const SelectorSpec spec = {.kind = SelectorKind::kRandomK, .ratio = ratio};
      const Indices found = Selected(spec, std::vector<float>(n), {.step = n});
      ASSERT_EQ(found.size(), static_cast<uint32_t>(TopCount(spec, n, 0)));
      for (size_t j = 1; j < found.size(); ++j) ASSERT_LT(found[j - 1], found[j]);
      if (!found.empty()) {
        ASSERT_LT(found.back(), n);
      }
    }
  }
}

TEST(RandomK, TakesEachPositionAndPairEquallyOften) {
  constexpr uint32_t kElements = 20;
  constexpr int kDraws = 50'000;
  const SelectorSpec spec = {.kind = SelectorKind::kRandomK, .ratio = 0.25};  // 5 of 20
  std::vector<int> taken(kElements);
  std::vector<int> pairs(kElements * kElements);
  const std::vector<float> values(kElements);
  for (int draw = 0; draw < kDraws; ++draw) {
    const Indices found = Selected(spec, values, {.step = static_cast<uint64_t>(draw)});
    for (const uint16_t i : found) {
      ++taken[i];
      for (const uint16_t j : found) ++pairs[i * kElements + j];
    }
  }
  for (uint32_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(taken[i], kDraws * 0.25, 5 * std::sqrt(kDraws * 0.25 * 0.75)) << i;
    for (uint32_t j = 0; j < i; ++j) {
      const double p = 5.0 * 4 / (20 * 19);
      EXPECT_NEAR(pairs[i * kElements + j], kDraws * p, 5 * std::sqrt(kDraws * p)) << i;
    }
  }
}

TEST(RandomK, DependsOnTheJobTheStepTheTensorAndTheTileOnly) {
  const SelectorSpec spec = {.kind = SelectorKind::kRandomK, .ratio = 0.1, .seed = 5};
  const std::vector<float> values = Gaussian(1000);
  const Indices original = Selected(spec, values);
  EXPECT_EQ(Selected(spec, std::vector<float>(1000)), original);
  EXPECT_EQ(Selected(spec, values, {.seed = 9}), original) << "of one worker";
  EXPECT_NE(Selected(spec, values, {.step = 1}), original);
  EXPECT_NE(Selected(spec, values, {.tensor = 1}), original);
  EXPECT_NE(Selected(spec, values, {.first_element = 65536}), original);
  SelectorSpec other = spec;
  other.seed = 6;
  EXPECT_NE(Selected(other, values), original);
}

TEST(CheckSelector, RefusesOptionsWithoutAMeaning) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(CheckSelector({}).ok());
  EXPECT_TRUE(CheckSelector({.ratio = 1}).ok());
  EXPECT_TRUE(CheckSelector({.kind = SelectorKind::kBlocks, .ratio = 7}).ok());
  for (const double ratio : {0.0, -0.1, 1.01, double{nan}}) {
    EXPECT_FALSE(CheckSelector({.ratio = ratio}).ok()) << ratio;
  }
  for (const float threshold : {-1.0f, nan, std::numeric_limits<float>::infinity()}) {
    EXPECT_FALSE(
        CheckSelector({.kind = SelectorKind::kThreshold, .threshold = threshold}).ok());
  }
  EXPECT_FALSE(CheckSelector({.kind = SelectorKind::kTopKReuse, .period = 0}).ok());
  EXPECT_TRUE(CheckSelector({.ratio = 0.5}).ok()) << "without a warm-up";
  EXPECT_TRUE(CheckSelector({.ratio = 0.5, .warmup = {.steps = 9, .ratio = 0.5}}).ok());
  for (const double ratio : {0.4, 1.1, double{nan}}) {
    EXPECT_FALSE(
        CheckSelector({.ratio = 0.5, .warmup = {.steps = 9, .ratio = ratio}}).ok());
  }
  EXPECT_FALSE(
      CheckSelector({.kind = SelectorKind::kRandomK, .scope = SelectorScope::kTensor})
          .ok());
}

}  // namespace
}  // namespace syncline
