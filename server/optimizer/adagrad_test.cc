#include "server/optimizer/adagrad.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct AdagradReference {
  explicit AdagradReference(const OptimizerSettings& settings)
      : decay(settings),
        lr_decay(Option(settings, "lr_decay")),
        start(Option(settings, "initial_accumulator_value")),
        epsilon(Option(settings, "eps")) {}

  template <typename Real>
  void Step(int t, Real gradient, Element<Real>& e) const {
    const Real g = decay.Apply(gradient, e);
    if (t == 1) e.v = Real(start);
    e.v += g * g;
    const double lr = decay.lr / (1 + (t - 1) * lr_decay);
    e.p -= Real(lr) * (g / (std::sqrt(e.v) + Real(epsilon)));
  }

  DecayReference decay;
  double lr_decay;
  double start;
  double epsilon;
};

OptimizerSettings Adagrad(OptionValues options) {
  return {.name = "adagrad", .options = std::move(options)};
}

TEST(Adagrad, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {Adagrad({}), {0.958992958f, -0.467683285f, 0.228922248f, 2.99182558f}},
      {Adagrad({{"lr", 0.1},
                {"lr_decay", 0.5},
                {"weight_decay", 0.1},
                {"initial_accumulator_value", 0.01},
                {"eps", 1e-6}}),
       {0.773690641f, -0.302083373f, 0.0967537239f, 2.79877758f}},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(Adagrad, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  for (const OptionValues& options :
       {OptionValues{{"weight_decay", 0.01}},
        OptionValues{{"weight_decay", 0.01}, {"decoupled", 1}},
        OptionValues{{"weight_decay", 0.01},
                     {"lr_decay", 1e-3},
                     {"initial_accumulator_value", 0.1},
                     {"eps", 1e-6}}}) {
    ExpectAsExactAsAPlainLoop<AdagradReference>(Adagrad(options));
  }
}

TEST(Adagrad, StartsFromTheInitialValueOnlyOnce) {
  Training training(Adagrad({{"initial_accumulator_value", 2}}), {1});
  training.Step(std::vector<float>{1});
  EXPECT_EQ(training.state(0)[0], 3.0f);
  training.Step(std::vector<float>{1});
  EXPECT_EQ(training.state(0)[0], 4.0f);
}

TEST(Adagrad, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Adagrad({{"weight_decay", 0.1}, {"lr_decay", 0.1}}));
  ExpectTheSameBitsInAnyCutting(Adagrad({{"weight_decay", 0.1}, {"decoupled", 1}}));
}

TEST(Adagrad, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(Adagrad({{"initial_accumulator_value", -1}})),
            "optimizer 'adagrad': initial_accumulator_value is -1, but must be in [0, "
            "1e+06]");
  EXPECT_EQ(RefusalOf(Adagrad({{"lrdecay", 1}})),
            "optimizer 'adagrad' has no option 'lrdecay'; did you mean 'lr_decay'?");
}

}  // namespace
}  // namespace syncline
