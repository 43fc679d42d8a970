#include "comm/compression/policy/codec_policy.h"

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kElements = 10'000'000;
constexpr std::array<uint64_t, 1> kOneTensor = {kElements};
// Tests explore at no step unless they ask for it.
constexpr CodecPolicyOptions kNoExploring = {.explore_steps = uint64_t{1} << 40};

// Measures a wire as it would be after many messages.
void MeasureWire(CodecPolicy& policy, double bytes_per_second) {
  for (int i = 0; i < 40; ++i) {
    policy.Sent({.bytes = 1'000'000, .ns = 1e6 * 1e9 / bytes_per_second});
  }
}

CodecPolicy PolicyAt(double bytes_per_second,
                     const CodecPolicyOptions& options = kNoExploring) {
  CodecPolicy policy(options, kOneTensor);
  MeasureWire(policy, bytes_per_second);
  return policy;
}

Candidate ChosenAt(double bytes_per_second) {
  return PolicyAt(bytes_per_second).Choose(0, 1).candidate;
}

TEST(CodecPolicy, SlowerWiresTakeFewerBytes) {
  struct Case {
    double gigabits_per_second;
    Candidate want;
  };
  for (const Case& wire : {Case{0.01, Candidate::kTopK}, Case{0.1, Candidate::kTopK},
                           Case{1, Candidate::kTopK}, Case{5, Candidate::kOneBit},
                           Case{10, Candidate::kOneBit}, Case{40, Candidate::kOneBit},
                           Case{400, Candidate::kDense}, Case{4000, Candidate::kDense}}) {
    EXPECT_EQ(ChosenAt(wire.gigabits_per_second * 1e9 / 8), wire.want)
        << wire.gigabits_per_second << " Gbit/s";
  }
}

// Encoding, wire and decoding must add up to what the reason says.
TEST(CodecPolicy, ExplainsWhatItChose) {
  CodecPolicy policy = PolicyAt(0.9e9);
  // 10^7 (0.5 + 0.128 / 0.9 + 0.2) ns and 10^7 (0.45 + 2 / 0.9 + 0.25) ns.
  EXPECT_EQ(policy.Choose(0, 1).reason,
            "onebit: wire 0.9 GB/s, 8.42 ms against 29.2 ms dense");
  EXPECT_NEAR(policy.CostNs(0, Candidate::kOneBit), 8.42e6, 1e4);
  EXPECT_THAT(PolicyAt(12.5e6).Choose(0, 1).reason, HasSubstr("wire 12.5 MB/s"));
  EXPECT_THAT(PolicyAt(1e12).Choose(0, 1).reason,
              AllOf(StartsWith("dense: wire 1e+03 GB/s, 7.02 ms against "),
                    HasSubstr(" onebit")));
}

TEST(CodecPolicy, NothingIsCompressedInsideOneHostOrBeforeTheWireIsKnown) {
  CodecPolicy policy(kNoExploring, kOneTensor);
  EXPECT_EQ(policy.Choose(0, 0).candidate, Candidate::kDense);
  EXPECT_EQ(policy.Choose(0, 0).reason, "dense: the wire was not measured yet");
  MeasureWire(policy, 1e6);
  EXPECT_EQ(policy.Choose(0, 1).candidate, Candidate::kTopK);
  policy.Moved(ReceiverPlace::kThisHost);
  EXPECT_EQ(policy.Choose(0, 2).candidate, Candidate::kDense);
  EXPECT_EQ(policy.Choose(0, 2).reason, "dense: the receiver is on this host");
  policy.Moved(ReceiverPlace::kNetwork);
  EXPECT_EQ(policy.Choose(0, 200).candidate, Candidate::kTopK);
}

TEST(CodecPolicy, AChoiceHoldsForItsStep) {
  CodecPolicy policy = PolicyAt(1e7);
  ASSERT_EQ(policy.Choose(0, 5).candidate, Candidate::kTopK);
  MeasureWire(policy, 1e13);
  EXPECT_EQ(policy.Choose(0, 5).candidate, Candidate::kTopK);
  EXPECT_EQ(policy.Choose(0, 500).candidate, Candidate::kDense);
}

// Sets what a candidate takes apart from the wire, so that this is its cost on an
// infinitely fast one.
void MeasureCost(CodecPolicy& policy, Candidate candidate, double ns) {
  for (int i = 0; i < 60; ++i) {
    policy.Encoded(candidate, {.elements = 1000, .bytes = 1, .ns = 1000 * ns});
    policy.Decoded(candidate, {.elements = 1000, .ns = 0});
  }
}

CodecPolicy PolicyOfCosts(const std::map<Candidate, double>& costs) {
  CodecPolicy policy = PolicyAt(1e15);
  for (const auto& [candidate, ns] : costs) MeasureCost(policy, candidate, ns);
  return policy;
}

TEST(CodecPolicy, WhatLosesMustSaveAFifth) {
  using enum Candidate;
  EXPECT_EQ(PolicyOfCosts({{kDense, 10}, {kInt8, 8.1}, {kOneBit, 99}, {kTopK, 99}})
                .Choose(0, 1)
                .candidate,
            kDense);
  EXPECT_EQ(PolicyOfCosts({{kDense, 10}, {kInt8, 7.9}, {kOneBit, 99}, {kTopK, 99}})
                .Choose(0, 1)
                .candidate,
            kInt8);
}

TEST(CodecPolicy, AChangeMustSaveAFifthOfWhatIsTaken) {
  using enum Candidate;
  CodecPolicy policy =
      PolicyOfCosts({{kDense, 10}, {kInt8, 5}, {kOneBit, 99}, {kTopK, 99}});
  ASSERT_EQ(policy.Choose(0, 1).candidate, kInt8);
  MeasureCost(policy, kOneBit, 4.1);
  EXPECT_EQ(policy.Choose(0, 1000).candidate, kInt8);
  MeasureCost(policy, kOneBit, 3.9);
  EXPECT_EQ(policy.Choose(0, 2000).candidate, kOneBit);
  MeasureCost(policy, kInt8, 3.2);
  EXPECT_EQ(policy.Choose(0, 3000).candidate, kOneBit);
  // A candidate is kept while it saves anything, and no longer.
  MeasureCost(policy, kInt8, 99);
  MeasureCost(policy, kOneBit, 9.9);
  EXPECT_EQ(policy.Choose(0, 4000).candidate, kOneBit);
  MeasureCost(policy, kOneBit, 10.1);
  EXPECT_EQ(policy.Choose(0, 5000).candidate, kDense);
}

TEST(CodecPolicy, ChangesAreRare) {
  using enum Candidate;
  CodecPolicy policy =
      PolicyOfCosts({{kDense, 10}, {kInt8, 5}, {kOneBit, 99}, {kTopK, 99}});
  ASSERT_EQ(policy.Choose(0, 100).candidate, kInt8);
  MeasureCost(policy, kOneBit, 1);
  EXPECT_EQ(policy.Choose(0, 101).candidate, kInt8);
  EXPECT_THAT(policy.Choose(0, 101).reason,
              HasSubstr("waits for step 150 to become onebit"));
  EXPECT_EQ(policy.Choose(0, 149).candidate, kInt8);
  EXPECT_EQ(policy.Choose(0, 150).candidate, kOneBit);

  // A link that alternates between fast and slow.
  CodecPolicy nervous = PolicyAt(1e7);
  int changes = 0;
  Candidate last = nervous.Choose(0, 0).candidate;
  for (uint64_t step = 1; step <= 1000; ++step) {
    MeasureWire(nervous, step % 2 == 0 ? 1e7 : 1e13);
    const Candidate now = nervous.Choose(0, step).candidate;
    changes += now != last ? 1 : 0;
    last = now;
  }
  EXPECT_GT(changes, 1);
  EXPECT_LE(changes, 20);
}

// Returns the steps that try a candidate, and which one.
std::vector<std::pair<uint64_t, Candidate>> Tried(CodecPolicy& policy, uint32_t tensor,
                                                  uint64_t steps) {
  std::vector<std::pair<uint64_t, Candidate>> tried;
  for (uint64_t step = 1; step <= steps; ++step) {
    const CodecPolicy::Choice& choice = policy.Choose(tensor, step);
    if (choice.reason.find("tried for a step") != std::string::npos) {
      tried.emplace_back(step, choice.candidate);
    }
  }
  return tried;
}

TEST(CodecPolicy, TriesTheOthersNowAndThen) {
  using enum Candidate;
  constexpr std::array<uint64_t, 3> kTensors = {kElements, 0, kElements};
  CodecPolicy policy({.explore_steps = 50}, kTensors);
  MeasureWire(policy, 1e11);
  using Steps = std::vector<std::pair<uint64_t, Candidate>>;
  EXPECT_EQ(policy.Choose(0, 1).candidate, kDense);
  // Five turns of 50 steps each, for the first tensor and then for the third.
  EXPECT_EQ(Tried(policy, 0, 749), (Steps{{50, kInt8},
                                          {100, kOneBit},
                                          {150, kTopK},
                                          {550, kInt8},
                                          {600, kOneBit},
                                          {650, kTopK}}));
  EXPECT_EQ(Tried(policy, 2, 749), (Steps{{300, kInt8}, {350, kOneBit}, {400, kTopK}}));
}

TEST(CodecPolicy, TriesNothingThatCostsMuch) {
  // On this wire, 2 bytes per element would take as long as 100 steps of top-k.
  CodecPolicy alone = PolicyAt(12.5e6, {.explore_steps = 100});
  EXPECT_TRUE(Tried(alone, 0, 5000).empty());
  // One tensor with a thousandth of the model's elements may try.
  constexpr std::array<uint64_t, 2> kTensors = {kElements, kElements / 1000};
  CodecPolicy policy({.explore_steps = 100}, kTensors);
  MeasureWire(policy, 12.5e6);
  EXPECT_TRUE(Tried(policy, 0, 5000).empty());
  EXPECT_FALSE(Tried(policy, 1, 5000).empty());
}

TEST(CodecPolicy, StatisticsDecideBetweenTopKAndOneBitAndBlocks) {
  constexpr CodecPolicyOptions kOptions = {.by_statistics = true,
                                           .explore_steps = uint64_t{1} << 40};
  struct Case {
    GradientStatistics statistics;
    Candidate slow;  // at 1 Gbit/s
    const char* why;
  };
  const Case cases[] = {
      {{.top_energy = 0.08}, Candidate::kOneBit, "the largest 1 % hold 8 %"},
      {{.top_energy = 0.6}, Candidate::kTopK, "the largest 1 % hold 60 %"},
      {{.nonzero_blocks = 0.26, .top_energy = 0.6}, Candidate::kTopK, "hold"},
      {{.nonzero_blocks = 0.02, .top_energy = 0.6},
       Candidate::kBlocks,
       "2 % of the blocks are not zero"}};
  for (const Case& one : cases) {
    CodecPolicy policy = PolicyAt(125e6, kOptions);
    policy.Saw(0, one.statistics);
    EXPECT_EQ(policy.Choose(0, 1).candidate, one.slow) << one.why;
    EXPECT_THAT(policy.Choose(0, 1).reason, HasSubstr(one.why));
    CodecPolicy blind = PolicyAt(125e6);
    blind.Saw(0, one.statistics);
    EXPECT_EQ(blind.Choose(0, 1).candidate, Candidate::kTopK) << "statistics are off";
  }
  EXPECT_EQ(PolicyAt(125e6, kOptions).Choose(0, 1).candidate, Candidate::kTopK)
      << "nothing is known yet";
}

TEST(CodecPolicy, BlocksCostWhatIsInThem) {
  CodecPolicy policy = PolicyAt(1e9, {.by_statistics = true});
  policy.Saw(0, {.nonzero_blocks = 0.1});
  EXPECT_NEAR(policy.CostNs(0, Candidate::kBlocks) / kElements, 0.7 + 0.4 + 0.2, 1e-3);
  policy.Encoded(Candidate::kBlocks, {.elements = 1000, .bytes = 9000, .ns = 700});
  EXPECT_NEAR(policy.CostNs(0, Candidate::kBlocks) / kElements, 0.7 + 0.4 + 0.2, 1e-3)
      << "of another tensor";
}

// Compares with what `syncline bench codec` measures for its presets, within the spread
// between machines.
TEST(CodecPolicy, PriorsFollowTheRatio) {
  const auto at_1 = PriorCosts(0.01)[static_cast<size_t>(Candidate::kTopK)];
  EXPECT_NEAR(at_1.bytes, 0.0215, 0.0005);
  const auto at_10 = PriorCosts(0.1)[static_cast<size_t>(Candidate::kTopK)];
  EXPECT_NEAR(at_10.bytes, 0.161, 0.005);
  EXPECT_GT(at_10.encode_ns, at_1.encode_ns);
  EXPECT_GT(at_10.decode_ns, at_1.decode_ns);
}

// A whole job whose link and machine differ from the priors. The policy must end where an
// oracle with full knowledge ends, and spend little on the way.
TEST(CodecPolicy, FindsTheFastestOfASimulatedLink) {
  constexpr std::array<double, 4> kWork = {0.9, 1.0, 4.0, 2.0};  // a slow machine's ns
  constexpr std::array<double, 4> kBytes = {2, 1.006, 0.128, 0.0215};
  constexpr std::array<uint64_t, 3> kTensors = {4'000'000, 1'000'000, 100'000};
  for (const double bytes_per_second : {12.5e6, 125e6, 1.25e9, 12.5e9, 100e9}) {
    const auto cost = [&](Candidate candidate) {
      const auto i = static_cast<size_t>(candidate);
      return kWork[i] + kBytes[i] * 1e9 / bytes_per_second;
    };
    Candidate best = Candidate::kDense;
    for (const Candidate candidate :
         {Candidate::kInt8, Candidate::kOneBit, Candidate::kTopK}) {
      if (cost(candidate) < cost(best)) best = candidate;
    }
    CodecPolicy policy({}, kTensors);
    double spent = 0;
    double least = 0;
    constexpr uint64_t kSteps = 5000;
    for (uint64_t step = 0; step < kSteps; ++step) {
      for (uint32_t tensor = 0; tensor < kTensors.size(); ++tensor) {
        const Candidate now = policy.Choose(tensor, step).candidate;
        const auto n = static_cast<double>(kTensors[tensor]);
        const auto bytes = kBytes[static_cast<size_t>(now)] * n;
        policy.Encoded(now, {.elements = kTensors[tensor],
                             .bytes = static_cast<uint64_t>(bytes),
                             .ns = kWork[static_cast<size_t>(now)] * n});
        policy.Decoded(now, {.elements = kTensors[tensor], .ns = 0});
        policy.Sent({.bytes = static_cast<uint64_t>(bytes),
                     .ns = bytes * 1e9 / bytes_per_second});
        if (step > 2000) {
          spent += cost(now) * n;
          least += cost(best) * n;
        }
      }
    }
    EXPECT_LE(spent, 1.3 * least) << bytes_per_second;
    EXPECT_LE(policy.CostNs(0, policy.Choose(0, kSteps + 1).candidate),
              1.25 * 1.05 * kTensors[0] * cost(best))
        << bytes_per_second;
  }
}

}  // namespace
}  // namespace syncline
