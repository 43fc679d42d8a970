// The arithmetic of a step, compared bit for bit with a naive single process.
#include <algorithm>
#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

const ShardReply& LastReply(const ShardOutputs& outputs) {
  return std::get<ShardReply>(outputs.back());
}

struct ArithmeticCase {
  std::string name;
  OptimizerSettings optimizer;
  std::string codec;
};

class StepArithmetic : public ::testing::TestWithParam<ArithmeticCase> {};

OptimizerSettings Sgd(double momentum) {
  return {.name = "sgd",
          .options = {{"lr", 0.05},
                      {"weight_decay", 0.01},
                      {"momentum", momentum},
                      {"dampening", momentum / 10}}};
}

OptimizerSettings AdamW() { return {.name = "adamw"}; }

INSTANTIATE_TEST_SUITE_P(AllOptimizers, StepArithmetic,
                         ::testing::Values(ArithmeticCase{"SgdFp32", Sgd(0), "fp32"},
                                           ArithmeticCase{"SgdBf16", Sgd(0), "bf16"},
                                           ArithmeticCase{"MomentumBf16", Sgd(0.9),
                                                          "bf16"},
                                           ArithmeticCase{"AdamWFp32", AdamW(), "fp32"},
                                           ArithmeticCase{"AdamWBf16", AdamW(), "bf16"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(StepArithmetic, GivesTheBitsOfOneProcessForAllSizes) {
  const RigOptions options = {
      .codec = GetParam().codec,
      .training = {.optimizer = GetParam().optimizer},
      .tensors = {1, 63, 64, 4097, 65535, 65536, 65537, 2 * kTileElements + 5}};
  ShardRig rig(options);
  rig.Commit(1, {rig.Member(0), rig.Member(1), rig.Member(2)});
  for (uint32_t block = 0; block < 9; ++block) {
    const std::vector<float> seed = SomeValues(rig.range(block).elements, 77 + block);
    Reference reference(GetParam().optimizer, seed);
    rig.Seed(block, seed);
    for (uint64_t step = 0; step < 3; ++step) {
      rig.Push(0, block, step);
      rig.Push(1, block, step);
      const ShardOutputs outputs = rig.Push(2, block, step);
      reference.Step({rig.PushOf(0, block, step), rig.PushOf(1, block, step),
                      rig.PushOf(2, block, step)},
                     options.codec);
      ASSERT_EQ(rig.Weights(block), reference.weights()) << block << " step " << step;
      std::vector<float> published = reference.weights();
      for (float& value : published) value = RoundAs(options.codec, value);
      ASSERT_EQ(rig.Decode(LastReply(outputs)), published) << block << " step " << step;
    }
  }
}

TEST(StepOrder, DoesNotShowInTheBitsForAnyPermutationOfArrivals) {
  std::vector<uint32_t> order = {0, 1, 2, 3};
  std::vector<float> first;
  do {
    ShardRig rig({.training = {.optimizer = AdamW()}, .tensors = {5000}});
    rig.Commit(1, {rig.Member(0), rig.Member(1), rig.Member(2), rig.Member(3)});
    rig.Seed(0, SomeValues(5000, 1));
    ShardOutputs outputs;
    for (const uint32_t rank : order) outputs = rig.Push(rank, 0, 0);
    ASSERT_THAT(Lines(outputs)[1], "applied b0 s0 by r0 r1 r2 r3");
    if (first.empty()) first = rig.Weights(0);
    ASSERT_EQ(rig.Weights(0), first);
  } while (std::ranges::next_permutation(order).found);
}

TEST(StepFigures, BeginWithTheSquareSumOfTheMeanGradient) {
  ShardRig rig({.training = Decided(), .tensors = {kTileElements + 100}});
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  rig.Seed(0, SomeValues(kTileElements + 100, 1));
  rig.Push(1, 0, 0);
  const ShardOutputs outputs = rig.Push(0, 0, 0);
  ASSERT_THAT(Lines(outputs), ElementsAre("ack r0 b0 s0", "figures b0 s0"));
  const auto& figures = std::get<ShardFigures>(outputs[1]);
  const auto mean = Reference::Mean({rig.PushOf(0, 0, 0), rig.PushOf(1, 0, 0)}, "bf16");
  const double expected = std::accumulate(
      mean.begin(), mean.end(), 0.0,
      [](double sum, float value) { return sum + double{value} * double{value}; });
  ASSERT_EQ(figures.figures.size(), 1u);
  EXPECT_NEAR(figures.figures[0], expected, 1e-12 * expected);
}

TEST(StepFigures, SayWhenTheGradientIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    ShardRig rig({.training = Decided()});
    rig.Commit(1, {rig.Member(0)});
    rig.Seed(0, SomeValues(100, 1));
    Reference::Push push = rig.PushOf(0, 0, 0);
    push.gradient[99] = bad;
    const ShardOutputs outputs = rig.shard().Apply(rig.PushMessage(0, 0, 0, push));
    EXPECT_FALSE(std::isfinite(std::get<ShardFigures>(outputs[1]).figures[0]));
  }
}

TEST(StepDecisions, ScaleTheGradientAndSkippedStepsDoNotAgeTheOptimizer) {
  ShardRig rig({.training = Decided(AdamW())});
  Reference reference(AdamW(), SomeValues(100, 1));
  rig.Commit(1, {rig.Member(0)});
  rig.Seed(0, SomeValues(100, 1));
  for (uint64_t step = 0; step < 4; ++step) {
    rig.Push(0, 0, step);
    ShardDecision decision = {.step = step, .gradient_scale = 0.25f};
    if (step % 2 == 0) decision.verdict = ShardDecision::Verdict::kSkip;
    const ShardOutputs outputs = rig.shard().Apply(decision);
    EXPECT_EQ(std::get<ShardApplied>(outputs[0]).skipped, step % 2 == 0);
    EXPECT_EQ(LastReply(outputs).header.step, step + 1);
    if (step % 2 == 1) reference.Step({rig.PushOf(0, 0, step)}, "bf16", 0.25f);
    EXPECT_EQ(rig.Weights(0), reference.weights()) << step;
  }
}

TEST(StepVotes, TakeTheSignOfTheMajority) {
  ShardRig rig({.codec = "bf16",
                .publish = "fp32",
                .push = "signsgd",
                .training = {.optimizer = {.name = "sgd", .options = {{"lr", 1.0}}}},
                .tensors = {4}});
  rig.Commit(1, {rig.Member(0), rig.Member(1), rig.Member(2)});
  rig.Seed(0, {10, 10, 10, 10});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  rig.shard().Apply(rig.PushMessage(0, 0, 0, {{1, -1, 1, 0}, 1}));
  rig.shard().Apply(rig.PushMessage(1, 0, 0, {{1, -1, -1, nan}, 1}));
  rig.shard().Apply(rig.PushMessage(2, 0, 0, {{-1, -1, 0, 0}, 1}));
  const std::vector<float> weights = rig.Weights(0);
  EXPECT_THAT(std::span(weights).first(3), ElementsAre(9, 11, 10));
  EXPECT_TRUE(std::isnan(weights[3]));
}

// A shard whose workers vote with signs, or with BF16.
RigOptions Votes(const TrainingSettings& training) {
  return {.codec = "bf16", .publish = "fp32", .push = "signsgd", .training = training};
}

TrainingSettings SgdOfRateOne() {
  return {.optimizer = {.name = "sgd", .options = {{"lr", 1.0}}}};
}

TEST(StepVotes, CountEachWorkerOnceWhateverItsValuesAndSamples) {
  RigOptions options = Votes(SgdOfRateOne());
  options.tensors = {4};
  ShardRig rig(options);
  rig.Commit(1, {rig.Member(0), rig.Member(1), rig.Member(2)});
  rig.Seed(0, {10, 10, 10, 10});
  // A tile with an infinity travels densely. Its values are votes, and so is the
  // infinity.
  const float infinity = std::numeric_limits<float>::infinity();
  rig.shard().Apply(rig.PushMessage(0, 0, 0, {{-5, -infinity, infinity, 1}, 64}));
  rig.shard().Apply(rig.PushMessage(1, 0, 0, {{1, 1, -1, 0.25f}, 1}));
  rig.shard().Apply(rig.PushMessage(2, 0, 0, {{1, 1, 0, 1e-20f}, 1}));
  EXPECT_THAT(rig.Weights(0), ElementsAre(9, 9, 10, 9));
}

// Ties must change nothing, whatever the rounding of 1 / W.
TEST(StepVotes, TiesChangeNothing) {
  for (uint32_t workers = 2; workers <= 24; workers += 2) {
    ShardRig rig(Votes(SgdOfRateOne()));
    std::vector<ShardMember> members;
    for (uint32_t rank = 0; rank < workers; ++rank) members.push_back(rig.Member(rank));
    rig.Commit(1, members);
    rig.Seed(0, std::vector<float>(100, 10));
    for (uint32_t rank = 0; rank < workers; ++rank) {
      const float vote = rank < workers / 2 ? 1 : -1;
      rig.shard().Apply(rig.PushMessage(rank, 0, 0, {std::vector<float>(100, vote), 1}));
    }
    EXPECT_EQ(rig.Weights(0), std::vector<float>(100, 10)) << workers;
  }
}

TEST(StepVotes, AreNeitherUnscaledNorClippedNorTransformed) {
  TrainingSettings training = SgdOfRateOne();
  training.loss_scaling = {.name = "torch"};
  training.gradient = {{"clip_global_norm", 1e-3}, {"clip_value", 1e-3}};
  ShardRig rig(Votes(training));
  rig.Commit(1, {rig.Member(0)});
  rig.Seed(0, std::vector<float>(100, 10));
  const ShardOutputs outputs =
      rig.shard().Apply(rig.PushMessage(0, 0, 0, {std::vector<float>(100, 65536), 1}));
  EXPECT_THAT(std::get<ShardFigures>(outputs.back()).figures, ElementsAre(0));
  rig.shard().Apply(ShardDecision{.step = 0, .gradient_scale = 0.25f});
  EXPECT_EQ(rig.Weights(0), std::vector<float>(100, 9));
}

TEST(StepVotes, ThatAreNotFiniteAreSeenByTheDecision) {
  for (const auto aggregation : {Aggregation::kRankOrder, Aggregation::kArrival}) {
    for (const float bad : {std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      TrainingSettings training = Decided();
      training.aggregation = aggregation;
      ShardRig rig(Votes(training));
      rig.Commit(1, {rig.Member(0), rig.Member(1)});
      rig.Seed(0, SomeValues(100, 1));
      std::vector<float> gradient(100, 1);
      gradient[99] = bad;
      rig.shard().Apply(rig.PushMessage(0, 0, 0, {gradient, 1}));
      const ShardOutputs outputs =
          rig.shard().Apply(rig.PushMessage(1, 0, 0, {std::vector<float>(100, -1), 1}));
      EXPECT_FALSE(std::isfinite(std::get<ShardFigures>(outputs.back()).figures[0]));
    }
  }
}

// A shard whose workers send only values that are not zero, and which averages each
// element over the workers that sent it.
RigOptions Senders(const TrainingSettings& training) {
  return {.codec = "fp32",
          .push = "topk:values=fp32,ratio=1,mean_of_senders=1",
          .training = training};
}

ShardMessage SendsIn(const Codec& codec, ShardRig& rig, uint32_t rank,
                     const Reference::Push& push) {
  BufferPool pool(0);
  const BlockLabel label = {rig.range(0), 0, rig.shard().epoch()};
  const Buffer payload =
      Gather(EncodeBlock(codec, label, push.gradient, Checksum::kHeaderOnly, pool));
  ShardMessage message = {rig.Header(MessageKind::kPush, rank, 0, 0), Slice::Of(payload)};
  message.header.samples = push.samples;
  return message;
}
ShardMessage Sends(ShardRig& rig, uint32_t rank, const Reference::Push& push) {
  return SendsIn(*rig.transfers().push.codec, rig, rank, push);
}

TEST(StepSenders, ShareEachValueAmongThemselvesByTheirSamples) {
  RigOptions options = Senders(SgdOfRateOne());
  options.tensors = {6};
  ShardRig rig(options);
  rig.Commit(1, {rig.Member(0), rig.Member(1), rig.Member(2)});
  rig.Seed(0, std::vector<float>(6, 0.0f));
  // Sent by nobody; all; one; two with different samples; two that cancel; one, very
  // small.
  rig.shard().Apply(Sends(rig, 0, {{0, 4, 0, 6, 1, 0}, 1}));
  rig.shard().Apply(Sends(rig, 1, {{0, 4, 8, 0, -1, 0}, 1}));
  rig.shard().Apply(Sends(rig, 2, {{0, 4, 0, 9, 0, 1e-30f}, 2}));
  EXPECT_THAT(rig.Weights(0), ElementsAre(0, -4, -8, -8, 0, -1e-30f));
}

// The reference is a loop over contributions in rank order.
TEST(StepSenders, GiveTheBitsOfOneProcessWhateverTheOrderOfArrival) {
  const std::vector<uint32_t> samples = {3, 1, 7};
  std::vector<std::vector<float>> gradients;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    gradients.push_back(SomeValues(kTileElements + 77, 5 + rank));
    for (size_t i = 0; i < gradients[rank].size(); ++i) {
      if ((i * 7 + rank * 3) % 5 < 3) gradients[rank][i] = 0;
    }
  }
  std::vector<float> want(gradients[0].size());
  for (size_t i = 0; i < want.size(); ++i) {
    float sum = 0;
    float weights = 0;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const auto weight = static_cast<float>(samples[rank] / 11.0);
      sum += weight * gradients[rank][i];
      if (gradients[rank][i] != 0) weights += weight;
    }
    want[i] = 0.5f - (weights == 0 ? sum : sum / weights);
  }
  std::vector<uint32_t> order = {0, 1, 2};
  do {
    RigOptions options = Senders(SgdOfRateOne());
    options.tensors = {want.size()};
    ShardRig rig(options);
    rig.Commit(1, {rig.Member(0), rig.Member(1), rig.Member(2)});
    rig.Seed(0, std::vector<float>(want.size(), 0.5f));
    for (const uint32_t rank : order) {
      rig.shard().Apply(Sends(rig, rank, {gradients[rank], samples[rank]}));
    }
    ASSERT_EQ(rig.Weights(0), want);
  } while (std::ranges::next_permutation(order).found);
}

// As in a plain mean: (4 * 2 + 2 * 8) / 4 of the first element, 2 * -2 / 4 of the last.
TEST(StepSenders, AreNotThinnedByAWorkerThatHandsOverAndLeaves) {
  RigOptions options = Senders(SgdOfRateOne());
  options.tensors = {3};
  ShardRig rig(options);
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  rig.Seed(0, {0, 0, 0});
  rig.shard().Apply(rig.PartingMessage(1, 0, 0, {{8, 0, -2}, 2}));
  rig.shard().Apply(Sends(rig, 0, {{2, 4, 0}, 4}));
  EXPECT_THAT(rig.Weights(0), ElementsAre(-6, -4, 1));
}

// The formula of DeMo: the mean of each coefficient over those who sent it, in values.
// The reference sums the decoded coefficients in float64.
TEST(StepSenders, OfCoefficientsAreAveragedInTheirBasis) {
  constexpr uint32_t kElements = kTileElements + 777;
  const std::vector<uint32_t> samples = {3, 1, 7};
  ShardRig rig({.codec = "fp32",
                .push = "demo:ratio=0.02",
                .training = SgdOfRateOne(),
                .tensors = {kElements}});
  rig.Commit(1, {rig.Member(0), rig.Member(1), rig.Member(2)});
  rig.Seed(0, std::vector<float>(kElements, 0.0f));
  const Transfer& push = rig.transfers().push;
  const CodecBasis& basis = *push.codec->basis();
  std::vector<double> sum(kElements), sent(kElements);
  for (const uint32_t rank : {2u, 0u, 1u}) {
    const std::vector<float> gradient = SomeValues(kElements, 5 + rank);
    // What travels densely has coefficients, too: all of them.
    const Codec& codec = rank == 1 ? *push.dense : *push.codec;
    rig.shard().Apply(SendsIn(codec, rig, rank, {gradient, samples[rank]}));
    for (uint32_t first = 0; first < kElements; first += kTileElements) {
      const uint32_t n = std::min(kTileElements, kElements - first);
      std::vector<std::byte> bytes(codec.MaxEncodedBytes(n));
      bytes.resize(codec.Encode(std::span(gradient).subspan(first, n), {},
                                {.first_element = first}, bytes));
      std::vector<float> coefficients(n);
      if (rank == 1) {
        ASSERT_TRUE(codec.Decode(bytes, coefficients).ok());
        basis.ToCoefficients(first, coefficients);
      } else {
        ASSERT_TRUE(basis.DecodeCoefficients(bytes, first, coefficients).ok());
      }
      for (uint32_t i = 0; i < n; ++i) {
        sum[first + i] += samples[rank] * double{coefficients[i]};
        if (coefficients[i] != 0) sent[first + i] += samples[rank];
      }
    }
  }
  std::vector<float> mean(kElements);
  for (uint32_t i = 0; i < kElements; ++i) {
    mean[i] = static_cast<float>(sent[i] == 0 ? 0 : sum[i] / sent[i]);
  }
  basis.FromCoefficients(0, std::span(mean).first(kTileElements));
  basis.FromCoefficients(kTileElements, std::span(mean).subspan(kTileElements));
  const std::vector<float> weights = rig.Weights(0);
  for (uint32_t i = 0; i < kElements; ++i) ASSERT_NEAR(weights[i], -mean[i], 1e-5) << i;
}

// The rate of L-BFGS scales with the samples of the update, like that of other
// optimizers.
TEST(StepRates, OfJobReductionsFollowTheBatch) {
  const auto weights_with = [](const OptionValues& schedule, uint32_t samples) {
    TrainingSettings training = {.optimizer = {.name = "lbfgs"}};
    training.schedule = {.name = "constant", .values = schedule};
    ShardRig rig({.codec = "fp32", .training = training});
    rig.Commit(1, {rig.Member(0)});
    rig.Seed(0, SomeValues(100, 1));
    const ShardOutputs outputs =
        rig.shard().Apply(rig.PushMessage(0, 0, 0, {SomeValues(100, 2), samples}));
    const std::vector<double>& figures = std::get<ShardFigures>(outputs.back()).figures;
    rig.shard().Apply(
        ShardDecision{.step = 0, .figures = {figures.begin() + 1, figures.end()}});
    return rig.Weights(0);
  };
  const std::vector<float> moved = weights_with({}, 64);
  EXPECT_NE(moved, SomeValues(100, 1));
  EXPECT_EQ(weights_with({{"base_batch", 64}}, 64), moved);
  EXPECT_NE(weights_with({{"base_batch", 64}}, 32), moved);
}

// A worker lends the memory of its contribution, and may overwrite it against the rules.
TEST(StepMemory, RewrittenByItsWorkerDoesNotEndTheServer) {
  ShardRig rig({.codec = "topk:ratio=0.1,min_elements=0", .tensors = {5000}});
  rig.Commit(1, {rig.Member(0), rig.Member(1)});
  rig.Seed(0, SomeValues(5000, 1));
  BufferPool pool(0);
  std::vector<Buffer> payloads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    payloads.push_back(
        Gather(EncodeBlock(*rig.transfers().push.codec, {rig.range(0), 0, 1},
                           SomeValues(5000, 2 + rank), Checksum::kHeaderOnly, pool)));
    ShardMessage push = {rig.Header(MessageKind::kPush, rank, 0, 0),
                         Slice::Of(payloads.back())};
    push.header.samples = 1;
    rig.shard().Apply(push);
    std::ranges::fill(payloads.front().mutable_view(), std::byte{0xff});
  }
  EXPECT_EQ(rig.shard().block_version(0), 1u);
}

TEST(StepGroups, HaveTheirOwnLearningRateAndWeightDecay) {
  BufferPool pool(1 << 20);
  const CodecRegistry codecs = CodecRegistry::Builtin();
  ShardOptions options;
  options.seed_codec = *codecs.Find(CodecId::kFp32);
  options.transfers = {
      {.push = *ParseTransfer("fp32"), .publish = *ParseTransfer("fp32")}};
  options.training.optimizer.options = {{"lr", 0.5}, {"weight_decay", 0.5}};
  const uint64_t one_element = 1;
  options.tensors = {
      {.shape = TensorShape({&one_element, 1}),
       .group = {.learning_rate_scale = 0.5, .options = {{"weight_decay", 0.0}}}}};
  const BlockRange range = {.tensor = 0, .first_element = 0, .elements = 1};
  const auto shard = *Shard::Create(options, {{0, range}}, pool);
  shard->Apply(ShardCommit{1, {{0, 0, 0, 0}}});
  MessageHeader header;
  header.epoch = 1;
  for (const MessageKind kind : {MessageKind::kSeed, MessageKind::kPush}) {
    float one[] = {1.0f};
    header.kind = static_cast<uint16_t>(kind);
    header.samples = kind == MessageKind::kPush ? 1 : 0;
    const Buffer payload = Gather(EncodeBlock(*options.seed_codec, {range, 0, 1}, one,
                                              Checksum::kHeaderOnly, pool));
    shard->Apply(ShardMessage{header, Slice::Of(payload)});
  }
  EXPECT_THAT(shard->block_weights(0), ElementsAre(0.75f));
}

}  // namespace
}  // namespace syncline
