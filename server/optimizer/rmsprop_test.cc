#include "server/optimizer/rmsprop.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct RmspropReference {
  explicit RmspropReference(const OptimizerSettings& settings)
      : decay(settings),
        alpha(Option(settings, "alpha")),
        momentum(Option(settings, "momentum")),
        centered(Option(settings, "centered") != 0),
        epsilon(Option(settings, "eps")) {}

  // The mean is torch's lerp for alpha >= 0.5.
  template <typename Real>
  void Step(int /*t*/, Real gradient, Element<Real>& e) const {
    const Real g = decay.Apply(gradient, e);
    e.v = Real(alpha) * e.v + Real(1 - alpha) * g * g;
    Real variance = e.v;
    if (centered) {
      e.m += Real(1 - alpha) * (g - e.m);
      variance -= e.m * e.m;
    }
    const Real direction = g / (std::sqrt(variance) + Real(epsilon));
    e.extra = Real(momentum) * e.extra + direction;
    e.p -= Real(decay.lr) * e.extra;
  }

  DecayReference decay;
  double alpha;
  double momentum;
  bool centered;
  double epsilon;
};

OptimizerSettings Rmsprop(OptionValues options) {
  return {.name = "rmsprop", .options = std::move(options)};
}

TEST(Rmsprop, GivesTheWeightsOfTorch) {
  const OptionValues common = {{"alpha", 0.9}, {"weight_decay", 0.1}};
  const GoldenCase cases[] = {
      {Rmsprop({}), {0.58911711f, -0.175539538f, 0.0382484123f, 2.91807699f}},
      {Rmsprop(Merge(common, {{"momentum", 0.9}})),
       {0.650490165f, -0.19466199f, 0.0177791994f, 2.69432139f}},
      {Rmsprop(Merge(common, {{"centered", 1}, {"eps", 1e-6}})),
       {0.855681002f, -0.378336966f, 0.169021547f, 2.87820339f}},
      {Rmsprop(Merge(common, {{"centered", 1}, {"momentum", 0.9}, {"eps", 1e-6}})),
       {0.609245718f, -0.158707961f, -0.00169253361f, 2.65820575f}},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(Rmsprop, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  for (const OptionValues& options :
       {OptionValues{{"weight_decay", 0.01}},
        OptionValues{{"weight_decay", 0.1}, {"decoupled", 1}, {"momentum", 0.9}},
        OptionValues{{"weight_decay", 0.01}, {"centered", 1}},
        OptionValues{{"weight_decay", 0.01}, {"centered", 1}, {"momentum", 0.9}}}) {
    ExpectAsExactAsAPlainLoop<RmspropReference>(Rmsprop(Merge({{"lr", 1e-3}}, options)));
  }
}

// The variance of a constant gradient is 0, and rounding sometimes makes it negative.
TEST(Rmsprop, StaysFiniteWhereTheCentredVarianceVanishes) {
  Training training(Rmsprop({{"centered", 1}, {"alpha", 0.5}}),
                    std::vector<float>(1000, 1.0f));
  std::vector<float> gradient(1000);
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = 0.1f + 1e-3f * static_cast<float>(i);
  }
  bool negative = false;
  for (int step = 0; step < 100; ++step) {
    training.Step(gradient);
    for (size_t i = 0; i < gradient.size(); ++i) {
      const float mean = training.state(1)[i];
      negative = negative || training.state(0)[i] - mean * mean < 0;
    }
  }
  EXPECT_TRUE(negative);
  for (const float weight : training.weights()) ASSERT_TRUE(std::isfinite(weight));
}

TEST(Rmsprop, HasTheSameBitsInAnyCutting) {
  for (const OptionValues& options :
       {OptionValues{{"decoupled", 1}}, OptionValues{{"momentum", 0.9}},
        OptionValues{{"centered", 1}},
        OptionValues{{"centered", 1}, {"momentum", 0.9}}}) {
    ExpectTheSameBitsInAnyCutting(Rmsprop(Merge({{"weight_decay", 0.1}}, options)));
  }
}

TEST(Rmsprop, HasOnlyTheStateThatTheOptionsNeed) {
  const auto slots = [](const OptionValues& options) {
    std::vector<std::string_view> names;
    for (const StateSlot& slot : (*MakeOptimizer(Rmsprop(options)))->slots()) {
      names.push_back(slot.name);
    }
    return names;
  };
  EXPECT_THAT(slots({}), testing::ElementsAre("square"));
  EXPECT_THAT(slots({{"momentum", 0.9}}), testing::ElementsAre("square", "momentum"));
  EXPECT_THAT(slots({{"momentum", 0.9}, {"centered", 1}}),
              testing::ElementsAre("square", "mean", "momentum"));
}

TEST(Rmsprop, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(Rmsprop({{"centered", 0.5}})),
            "optimizer 'rmsprop': centered is 0.5, but must be 0 or 1");
  EXPECT_EQ(RefusalOf(Rmsprop({{"alfa", 0.9}})),
            "optimizer 'rmsprop' has no option 'alfa'; did you mean 'alpha'?");
}

}  // namespace
}  // namespace syncline
