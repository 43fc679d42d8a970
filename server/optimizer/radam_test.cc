#include "server/optimizer/radam.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct RAdamReference {
  explicit RAdamReference(const OptimizerSettings& settings)
      : decay(settings),
        beta1(Option(settings, "beta1")),
        beta2(Option(settings, "beta2")),
        epsilon(Option(settings, "eps")) {}

  template <typename Real>
  void Step(int t, Real gradient, Element<Real>& e) const {
    const Real g = decay.Apply(gradient, e);
    e.m = Real(beta1) * e.m + Real(1 - beta1) * g;
    e.v = Real(beta2) * e.v + Real(1 - beta2) * g * g;
    const Real mean = e.m / Real(1 - std::pow(beta1, t));
    const double correction2 = 1 - std::pow(beta2, t);
    const double rho = 2 / (1 - beta2) - 1;
    const double rho_t = rho - 2 * t * std::pow(beta2, t) / correction2;
    Real step = mean * Real(decay.lr);
    if (rho_t > 5) {
      step *= Real(std::sqrt(correction2)) / (std::sqrt(e.v) + Real(epsilon));
      step *= Real(
          std::sqrt((rho_t - 4) * (rho_t - 2) * rho / ((rho - 4) * (rho - 2) * rho_t)));
    }
    e.p -= step;
  }

  DecayReference decay;
  double beta1;
  double beta2;
  double epsilon;
};

OptimizerSettings RAdam(OptionValues options) {
  return {.name = "radam", .options = std::move(options)};
}

// The first five steps are not adaptive with any beta2.
TEST(RAdam, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {RAdam({{"lr", 0.01}, {"weight_decay", 0.1}}),
       {0.98457551f, -0.487513602f, 0.239064887f, 2.9850018f}},
      {RAdam({{"lr", 0.01}, {"weight_decay", 0.1}}),
       {0.98146975f, -0.484498501f, 0.236943454f, 2.98198676f},
       12},
      {RAdam({{"lr", 0.01},
              {"weight_decay", 0.1},
              {"decoupled", 1},
              {"beta1", 0.8},
              {"beta2", 0.9},
              {"eps", 1e-6}}),
       {0.946151733f, -0.453974336f, 0.219678879f, 2.96417212f},
       12},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(RAdam, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  for (const OptionValues& options :
       {OptionValues{{"weight_decay", 0.01}},
        OptionValues{{"weight_decay", 0.1}, {"decoupled", 1}, {"beta2", 0.9}},
        OptionValues{{"weight_decay", 0.01}, {"beta2", 0.5}}}) {
    ExpectAsExactAsAPlainLoop<RAdamReference>(RAdam(options));
  }
}

TEST(RAdam, NeverAdaptsWithAShortMemory) {
  // 2 / (1 - 0.6) - 1 is below 5, so no step is adaptive.
  Training training(RAdam({{"beta2", 0.6}, {"beta1", 0}, {"lr", 0.5}}), {0});
  for (int step = 0; step < 100; ++step) training.Step(std::vector<float>{0.25f});
  EXPECT_EQ(training.weights()[0], -12.5f);
}

TEST(RAdam, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(RAdam({{"weight_decay", 0.1}}));
  ExpectTheSameBitsInAnyCutting(RAdam({{"weight_decay", 0.1}, {"decoupled", 1}}));
}

TEST(RAdam, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(RAdam({{"beta2", 1}})),
            "optimizer 'radam': beta2 is 1, but must be in [0, 1)");
  EXPECT_EQ(RefusalOf(RAdam({{"decuopled", 1}})),
            "optimizer 'radam' has no option 'decuopled'; did you mean 'decoupled'?");
}

}  // namespace
}  // namespace syncline
