#include "server/optimizer/adamax.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct AdamaxReference {
  explicit AdamaxReference(const OptimizerSettings& settings)
      : decay(settings),
        beta1(Option(settings, "beta1")),
        beta2(Option(settings, "beta2")),
        epsilon(Option(settings, "eps")) {}

  template <typename Real>
  void Step(int t, Real gradient, Element<Real>& e) const {
    const Real g = decay.Apply(gradient, e);
    e.m += Real(1 - beta1) * (g - e.m);
    e.v = std::max(Real(beta2) * e.v, std::abs(g) + Real(epsilon));
    e.p -= Real(decay.lr / (1 - std::pow(beta1, t))) * (e.m / e.v);
  }

  DecayReference decay;
  double beta1;
  double beta2;
  double epsilon;
};

OptimizerSettings Adamax(OptionValues options) {
  return {.name = "adamax", .options = std::move(options)};
}

TEST(Adamax, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {Adamax({{"lr", 0.01}, {"weight_decay", 0.1}}),
       {0.959588945f, -0.450117767f, 0.216395959f, 2.95019937f}},
      {Adamax({{"lr", 0.01}, {"beta1", 0.8}, {"beta2", 0.9}, {"eps", 1e-6}}),
       {0.911394417f, -0.380000472f, 0.178134412f, 2.98656726f},
       12},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(Adamax, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  for (const OptionValues& options :
       {OptionValues{{"weight_decay", 0.01}},
        OptionValues{{"weight_decay", 0.1}, {"decoupled", 1}, {"beta2", 0.9}},
        OptionValues{{"beta1", 0}, {"eps", 1e-4}}}) {
    ExpectAsExactAsAPlainLoop<AdamaxReference>(Adamax(options));
  }
}

TEST(Adamax, ForgetsTheLargestGradientSlowly) {
  Training training(Adamax({{"beta2", 0.5}, {"eps", 1e-30}}), {1});
  training.Step(std::vector<float>{-8});
  EXPECT_EQ(training.state(1)[0], 8.0f);
  training.Step(std::vector<float>{1});
  EXPECT_EQ(training.state(1)[0], 4.0f);
}

TEST(Adamax, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Adamax({{"weight_decay", 0.1}}));
  ExpectTheSameBitsInAnyCutting(Adamax({{"weight_decay", 0.1}, {"decoupled", 1}}));
}

TEST(Adamax, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(Adamax({{"beta2", 1}})),
            "optimizer 'adamax': beta2 is 1, but must be in [0, 1)");
  EXPECT_EQ(RefusalOf(Adamax({{"bata1", 0.9}})),
            "optimizer 'adamax' has no option 'bata1'; did you mean 'beta1'?");
}

}  // namespace
}  // namespace syncline
