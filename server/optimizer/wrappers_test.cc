#include "server/optimizer/wrappers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

OptimizerSettings Wrapped(const OptionValues& options) {
  return {.name = "sgd",
          .options =
              Merge({{"lr", 0.01}, {"momentum", 0.9}, {"weight_decay", 0.1}}, options)};
}

// One element under SGD in float64, and the wrapper's number for it.
struct WrappedReference {
  double p = 0;
  double momentum = 0;
  double wrapper = 0;

  void Sgd(double g) {
    g += 0.1 * p;
    momentum = 0.9 * momentum + g;
    p -= 0.01 * momentum;
  }
};

// Trains 1,000 steps and compares with float64. `after(t, element)` does the wrapper's
// part of update t.
template <typename After>
void ExpectExact(const OptimizerSettings& settings, const After& after) {
  constexpr size_t kElements = 300;
  std::mt19937 random(8);
  const std::vector<float> weights = MixedGradient(random, kElements);
  std::vector<WrappedReference> exact(kElements);
  for (size_t i = 0; i < kElements; ++i) exact[i].p = exact[i].wrapper = weights[i];
  Training run(settings, weights);
  for (int t = 1; t <= 1000; ++t) {
    const std::vector<float> gradient = MixedGradient(random, kElements);
    run.Step(gradient);
    for (size_t i = 0; i < kElements; ++i) {
      exact[i].Sgd(gradient[i]);
      after(t, exact[i]);
    }
  }
  std::vector<double> want;
  std::vector<double> want_wrapper;
  for (const auto& element : exact) {
    want.push_back(element.p);
    want_wrapper.push_back(element.wrapper);
  }
  EXPECT_LT(Distance(run.weights(), want), 1e-6 * RootMeanSquare(want));
  EXPECT_LT(Distance(run.state(1), want_wrapper), 1e-6 * RootMeanSquare(want_wrapper));
}

TEST(Lookahead, PullsTheWeightsBackEveryFewUpdates) {
  ExpectExact(Wrapped({{"lookahead_steps", 6}, {"lookahead_alpha", 0.3}}),
              [](int t, WrappedReference& e) {
                if (t % 6 == 0) e.p = e.wrapper += 0.3 * (e.p - e.wrapper);
              });
}

TEST(MovingAverage, FollowsTheWeightsAfterEachUpdate) {
  ExpectExact(Wrapped({{"ema_decay", 0.99}}), [](int /*t*/, WrappedReference& e) {
    e.wrapper = 0.99 * e.wrapper + (1 - 0.99) * e.p;
  });
}

TEST(EqualAverage, IsTheMeanOfTheChosenUpdates) {
  double weight = 0;
  ExpectExact(Wrapped({{"swa_start", 101}, {"swa_every", 7}}),
              [&](int t, WrappedReference& e) {
                if (t < 101 || (t - 101) % 7 != 0) return;
                const int averaged = (t - 101) / 7;
                weight = averaged;
                e.wrapper = (e.wrapper * weight + e.p) / (weight + 1);
              });
}

TEST(EqualAverage, BeginsAsTheExactWeights) {
  Training run(Wrapped({{"swa_start", 3}}), {0.1f, -7.3f});
  run.Step(std::vector<float>{0.3f, 0.7f});
  run.Step(std::vector<float>{0.3f, 0.7f});
  EXPECT_EQ(run.state(1), (std::vector<float>{0.1f, -7.3f})) << "nothing averaged yet";
  run.Step(std::vector<float>{0.3f, 0.7f});
  EXPECT_EQ(run.state(1), run.weights());
}

// Compares with SGD of torch 2.13, and an AveragedModel of torch.optim.swa_utils that is
// updated when `options` say so. `torch` is its average after ten updates.
void ExpectAverageOfTorch(const OptionValues& options, const std::vector<float>& torch) {
  const OptionValues sgd = {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.1}};
  Training run({.name = "sgd", .options = Merge(sgd, options)},
               {1.0f, -0.5f, 0.25f, 3.0f});
  for (int t = 1; t <= 10; ++t) {
    run.Step(std::vector<float>{0.1f * static_cast<float>(t), -0.2f,
                                0.3f / static_cast<float>(t),
                                t % 2 == 1 ? 1e-3f : -1e-3f});
  }
  for (size_t i = 0; i < torch.size(); ++i) {
    EXPECT_NEAR(run.state(1)[i], torch[i], 5e-7) << i;
  }
}

TEST(MovingAverage, IsThatOfTorch) {
  ExpectAverageOfTorch({{"ema_decay", 0.9}},
                       {0.38503021f, -0.16740924f, 0.04308016f, 2.60074854f});
}

TEST(EqualAverage, IsThatOfTorch) {
  ExpectAverageOfTorch({{"swa_start", 3}, {"swa_every", 2}},
                       {0.21493328f, -0.04458021f, -0.04959211f, 2.45324993f});
}

TEST(Wrappers, AveragesDoNotTouchTheWeights) {
  for (const OptionValues& options :
       {OptionValues{{"ema_decay", 0.9}}, OptionValues{{"swa_start", 1}}}) {
    Training plain(Wrapped({}), std::vector<float>(100, 0.5f));
    Training averaged(Wrapped(options), std::vector<float>(100, 0.5f));
    std::mt19937 random(4);
    for (int t = 0; t < 5; ++t) {
      const std::vector<float> gradient = MixedGradient(random, 100);
      plain.Step(gradient);
      averaged.Step(gradient);
    }
    ExpectSameBits(averaged.weights(), plain.weights(), "averaged");
  }
}

TEST(Wrappers, AveragesSeeTheWeightsThatLookaheadLeaves) {
  Training run(
      Wrapped({{"lookahead_steps", 1}, {"lookahead_alpha", 0}, {"ema_decay", 0.5}}),
      {1.0f});
  run.Step(std::vector<float>{10.0f});
  EXPECT_EQ(run.weights(), std::vector<float>{1.0f});
  EXPECT_EQ(run.state(1), std::vector<float>{1.0f}) << "lookahead";
  EXPECT_EQ(run.state(2), std::vector<float>{1.0f}) << "ema";
}

TEST(Wrappers, KeepOneSlotOfWeightsAfterThoseOfTheOptimizer) {
  for (const std::string_view name : OptimizerNames()) {
    if (name == "lbfgs") continue;  // cannot have Lookahead
    const auto plain = *MakeOptimizer({.name = std::string(name)});
    const auto wrapped =
        *MakeOptimizer({.name = std::string(name),
                        .options = {{"lookahead_steps", 5}, {"swa_start", 9}}});
    const auto slots = wrapped->slots();
    ASSERT_EQ(slots.size(), plain->slots().size() + 2) << name;
    EXPECT_EQ(slots[slots.size() - 2].name, "lookahead");
    EXPECT_EQ(slots.back().name, "swa");
    EXPECT_EQ(slots.back().kind, SlotKind::kWeights);
    EXPECT_EQ(wrapped->name(), name);
    EXPECT_EQ(wrapped->tensor_reduction() != nullptr,
              plain->tensor_reduction() != nullptr);
    EXPECT_EQ(wrapped->contributions().hessian_every,
              plain->contributions().hessian_every);
    EXPECT_EQ(wrapped->contributions().momentum_from,
              plain->contributions().momentum_from);
  }
}

TEST(Wrappers, GoAroundEveryOptimizer) {
  for (const std::string_view name : OptimizerNames()) {
    if (name == "lbfgs") continue;
    Training plain({.name = std::string(name)}, std::vector<float>(64, 0.5f), {8, 8});
    Training wrapped({.name = std::string(name),
                      .options = {{"lookahead_steps", 1000}, {"ema_decay", 0.5}}},
                     std::vector<float>(64, 0.5f), {8, 8});
    std::mt19937 random(4);
    for (int t = 0; t < 3; ++t) {
      const std::vector<float> gradient = MixedGradient(random, 64);
      plain.Step(gradient);
      wrapped.Step(gradient);
    }
    ExpectSameBits(wrapped.weights(), plain.weights(), std::string(name));
  }
}

TEST(Wrappers, AHessianEstimateIsNoUpdate) {
  const auto optimizer = *MakeOptimizer(
      {.name = "sophia", .options = {{"lookahead_steps", 1}, {"ema_decay", 0.5}}});
  std::vector<float> weights = {3.0f};
  std::vector<std::vector<float>> state(4, std::vector<float>(1));
  std::vector<float*> pointers;
  for (auto& slot : state) pointers.push_back(slot.data());
  const std::vector<float> gradient = {1.0f};
  const Strip strip = {.gradient = gradient, .master = weights, .state = pointers};
  const TensorShape shape(std::vector<uint64_t>{1});
  optimizer->Apply({.contribution = ContributionKind::kHessian}, strip, {.shape = shape});
  EXPECT_GT(state[1][0], 0);
  EXPECT_EQ(state[2][0], 0) << "lookahead";
  EXPECT_EQ(state[3][0], 0) << "ema";
  optimizer->Apply({.learning_rate = 0.5}, strip, {.shape = shape});
  EXPECT_EQ(state[2][0], weights[0]) << "lookahead begins with the first update";
}

TEST(Wrappers, GiveTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Wrapped({{"lookahead_steps", 2}, {"ema_decay", 0.9}}));
  ExpectTheSameBitsInAnyCutting(Wrapped({{"lookahead_steps", 3}, {"swa_start", 2}}));
}

TEST(Wrappers, RefuseTwoAveragesAndWhatIsOutOfRange) {
  EXPECT_THAT(RefusalOf(Wrapped({{"ema_decay", 0.9}, {"swa_start", 1}})),
              AllOf(HasSubstr("ema_decay is 0.9"), HasSubstr("swa_start 1")));
  EXPECT_THAT(RefusalOf(Wrapped({{"ema_decay", 1}})), HasSubstr("[0, 1)"));
  EXPECT_THAT(RefusalOf(Wrapped({{"lookahead_alpha", 1.5}})), HasSubstr("[0, 1]"));
  EXPECT_THAT(RefusalOf(Wrapped({{"lookahead_steps", 2.5}})),
              HasSubstr("lookahead_steps"));
  EXPECT_THAT(RefusalOf(Wrapped({{"swa_every", 0}})), HasSubstr("swa_every"));
  EXPECT_THAT(RefusalOf(Wrapped({{"lookahead_step", 5}})),
              HasSubstr("'lookahead_steps'"));
}

TEST(Wrappers, LookaheadDoesNotGoWithLbfgs) {
  EXPECT_THAT(RefusalOf({.name = "lbfgs", .options = {{"lookahead_steps", 5}}}),
              AllOf(HasSubstr("lookahead_steps"), HasSubstr("lbfgs")));
  EXPECT_TRUE(MakeOptimizer({.name = "lbfgs", .options = {{"ema_decay", 0.9}}}).ok());
}

}  // namespace
}  // namespace syncline
