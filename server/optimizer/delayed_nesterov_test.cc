#include "server/optimizer/delayed_nesterov.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// The paper's algorithm, with weight decay. Element::v is the sum.
struct DelayedReference {
  explicit DelayedReference(const OptimizerSettings& settings)
      : decay(settings),
        momentum(Option(settings, "momentum")),
        every(static_cast<int>(Option(settings, "momentum_every"))),
        between(Option(settings, "momentum_between")) {}

  template <typename Real>
  void Step(int t, Real gradient, Element<Real>& e) const {
    Real g = gradient;
    if (decay.decoupled) {
      e.p *= Real(1 - decay.lr / every * decay.weight_decay);
    } else {
      g = gradient + Real(decay.weight_decay) * e.p;
    }
    e.v += g;
    double share = between;
    if (t % every == 0) {
      e.m = Real(momentum) * e.m + e.v / Real(every);
      e.v = 0;
      share = 1 - between * every + between;
    }
    e.p -= Real(decay.lr) * (Real(share * momentum) * e.m + g / Real(every));
  }

  DecayReference decay;
  double momentum;
  int every;
  double between;
};

OptimizerSettings Delayed(OptionValues options) {
  options.insert({{"momentum", 0.9}, {"nesterov", 1}, {"momentum_every", 4}});
  return {.name = "sgd", .options = std::move(options)};
}

// Computed by hand: N = 2, momentum = 0.5, lr = 1.
TEST(DelayedNesterov, GivesTheWeightsOfTheFormula) {
  Training training(Delayed({{"lr", 1}, {"momentum", 0.5}, {"momentum_every", 2}}), {8});
  const auto step = [&](float gradient) {
    training.Step(std::vector<float>{gradient});
    return training.weights()[0];
  };
  EXPECT_EQ(step(2), 7.0f);   // 2 / 2
  EXPECT_EQ(step(4), 3.5f);   // m = 6 / 2; 0.5 m + 4 / 2
  EXPECT_EQ(step(2), 2.5f);   // 2 / 2
  EXPECT_EQ(step(0), 1.25f);  // m = 1.5 + 2 / 2; 0.5 m
  EXPECT_EQ(training.state(0)[0], 2.5f);
  EXPECT_EQ(training.state(1)[0], 0.0f);
}

TEST(DelayedNesterov, SpreadsTheMomentumOverTheStepsBetween) {
  Training training(Delayed({{"lr", 1},
                             {"momentum", 0.5},
                             {"momentum_every", 2},
                             {"momentum_between", 0.25}}),
                    {8});
  const auto step = [&](float gradient) {
    training.Step(std::vector<float>{gradient});
    return training.weights()[0];
  };
  EXPECT_EQ(step(2), 7.0f);     // m is 0
  EXPECT_EQ(step(4), 3.875f);   // m = 3; 0.75 * 0.5 m + 4 / 2
  EXPECT_EQ(step(2), 2.5f);     // 0.25 * 0.5 m + 2 / 2
  EXPECT_EQ(step(0), 1.5625f);  // m = 2.5; 0.75 * 0.5 m
}

TEST(DelayedNesterov, OverTheStepsOfOneMomentumAppliesWhatNesterovAppliesInOne) {
  for (const double between : {0.0, 0.1, 0.25}) {
    Training delayed(Delayed({{"lr", 0.1}, {"momentum_between", between}}), {1.0f});
    Training whole(
        {.name = "sgd", .options = {{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", 1}}},
        {1.0f});
    // The first four meet no momentum in between; later ones meet that of the four before.
    for (int i = 0; i < 4; ++i) delayed.Step(std::vector<float>{0.5f});
    whole.Step(std::vector<float>{0.5f});
    const float missing = static_cast<float>(between * 3) * 0.1f * 0.9f * 0.5f;
    EXPECT_NEAR(delayed.weights()[0], whole.weights()[0] + missing, 1e-6) << between;
    EXPECT_NEAR(delayed.state(0)[0], whole.state(0)[0], 1e-6) << between;
  }
}

TEST(DelayedNesterov, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  const OptionValues cases[] = {
      {},
      {{"weight_decay", 0.01}},
      {{"weight_decay", 0.01}, {"decoupled", 1}},
      {{"momentum_every", 7}, {"momentum_between", 0.1}},
  };
  for (OptionValues options : cases) {
    options["lr"] = 0.01;
    ExpectAsExactAsAPlainLoop<DelayedReference>(Delayed(options));
  }
}

TEST(DelayedNesterov, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Delayed({{"weight_decay", 0.01}}));
  ExpectTheSameBitsInAnyCutting(
      Delayed({{"momentum_every", 3}, {"momentum_between", 0.2}, {"decoupled", 1}}));
}

TEST(DelayedNesterov, EveryContributionIsNesterov) {
  const OptimizerSettings settings = Delayed({{"momentum_every", 1}});
  EXPECT_FALSE(DelaysMomentum(settings, {}));
  EXPECT_EQ((*MakeOptimizer(settings))->slots().size(), 1u);
  EXPECT_TRUE(DelaysMomentum(settings, {.options = {{"momentum_every", 2}}}));
  EXPECT_FALSE(DelaysMomentum({.name = "adamw"}, {}));
}

TEST(DelayedNesterov, RefusesWhatItCannotDelay) {
  EXPECT_THAT(RefusalOf(Delayed({{"nesterov", 0}})),
              HasSubstr("momentum_every=4 is delayed Nesterov, which needs nesterov=1"));
  EXPECT_THAT(RefusalOf(Delayed({{"momentum", 0}})), HasSubstr("momentum is 0"));
  EXPECT_THAT(
      RefusalOf(Delayed({{"momentum_between", 0.3}})),
      HasSubstr("momentum_between is 0.3, but must be in [0, 1 / momentum_every]"));
  EXPECT_THAT(RefusalOf(Delayed({{"momentum_every", 1}, {"momentum_between", 0.3}})),
              HasSubstr("must be above 1"));
  EXPECT_THAT(RefusalOf(Delayed({{"momentum_every", 0}})), HasSubstr("momentum_every"));
}

}  // namespace
}  // namespace syncline
