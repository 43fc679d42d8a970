#include "server/optimizer/nadam.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct NAdamReference {
  explicit NAdamReference(const OptimizerSettings& settings)
      : decay(settings),
        beta1(Option(settings, "beta1")),
        beta2(Option(settings, "beta2")),
        momentum_decay(Option(settings, "momentum_decay")),
        epsilon(Option(settings, "eps")) {
    for (int t = 1; t <= 1001; ++t) products.push_back(products.back() * Momentum(t));
  }

  double Momentum(int t) const {
    return beta1 * (1 - 0.5 * std::pow(0.96, t * momentum_decay));
  }

  template <typename Real>
  void Step(int t, Real gradient, Element<Real>& e) const {
    const Real g = decay.Apply(gradient, e);
    e.m = Real(beta1) * e.m + Real(1 - beta1) * g;
    e.v = Real(beta2) * e.v + Real(1 - beta2) * g * g;
    const Real denominator =
        std::sqrt(e.v / Real(1 - std::pow(beta2, t))) + Real(epsilon);
    e.p -= Real(decay.lr * (1 - Momentum(t)) / (1 - products[t])) * (g / denominator);
    e.p -= Real(decay.lr * Momentum(t + 1) / (1 - products[t + 1])) * (e.m / denominator);
  }

  DecayReference decay;
  double beta1;
  double beta2;
  double momentum_decay;
  double epsilon;
  std::vector<double> products = {1.0};
};

OptimizerSettings NAdam(OptionValues options) {
  return {.name = "nadam", .options = std::move(options)};
}

TEST(NAdam, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {NAdam({}), {0.990013301f, -0.491901219f, 0.244575575f, 2.99794769f}},
      {NAdam({{"lr", 0.01},
              {"weight_decay", 0.1},
              {"momentum_decay", 0.5},
              {"beta1", 0.8},
              {"beta2", 0.99},
              {"eps", 1e-6}}),
       {0.947150707f, -0.454855233f, 0.217637628f, 2.95485044f}},
      {NAdam({{"lr", 0.01}, {"weight_decay", 0.1}, {"decoupled", 1}}),
       {0.945176601f, -0.457098603f, 0.221700311f, 2.97479749f}},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(NAdam, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  for (const OptionValues& options :
       {OptionValues{{"weight_decay", 0.01}},
        OptionValues{{"weight_decay", 0.1}, {"decoupled", 1}, {"momentum_decay", 0.5}}}) {
    ExpectAsExactAsAPlainLoop<NAdamReference>(NAdam(options));
  }
}

// With beta1 and beta2 this small, a gradient of 1 from a zero state moves the weight by
// nearly lr * ((1 - u(t)) / (1 - U(t)) + u(t + 1) / (1 - U(t + 1)) * (1 - beta1)).
double StepOf(uint64_t t, const OptionValues& options) {
  const OptimizerSettings settings = NAdam(options);
  const auto optimizer = *MakeOptimizer(settings);
  std::vector<float> weight = {0};
  std::vector<float> mean = {0};
  std::vector<float> variance = {0};
  const std::vector<float> gradient = {1};
  const std::vector<float*> state = {mean.data(), variance.data()};
  const TensorShape shape({{1}});
  optimizer->Apply({.step = t, .learning_rate = 1},
                   {.gradient = gradient, .master = weight, .state = state},
                   {.shape = shape});
  return -weight[0];
}

TEST(NAdam, ProductOfTheMomentaIsExactAtAnyStep) {
  for (const double beta1 : {0.0, 0.5, 0.9, 0.999, 1 - 1e-6}) {
    for (const double momentum_decay : {0.0, 4e-3, 0.3, 0.4, 1.0, 1e3}) {
      const auto momentum = [&](double t) {
        return beta1 * (1 - 0.5 * std::pow(0.96, t * momentum_decay));
      };
      double product = 1;
      for (uint64_t t = 1; t <= 20000; ++t) {
        const auto at = static_cast<double>(t);
        product *= momentum(at);
        if ((t & (t - 1)) != 0 && t % 4999 != 0) continue;
        const double next = momentum(at + 1);
        const double want = (1 - momentum(at)) / (1 - product) +
                            next / (1 - product * next) * (1 - beta1);
        const double got = StepOf(t, {{"beta1", beta1},
                                      {"beta2", 0},
                                      {"eps", 1e-30},
                                      {"momentum_decay", momentum_decay}});
        EXPECT_NEAR(got / want, 1, 1e-6)
            << "beta1 " << beta1 << " momentum_decay " << momentum_decay << " t " << t;
      }
    }
  }
}

TEST(NAdam, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(NAdam({{"weight_decay", 0.1}}));
  ExpectTheSameBitsInAnyCutting(NAdam({{"weight_decay", 0.1}, {"decoupled", 1}}));
}

TEST(NAdam, RefusesWithRangeAndNearestName) {
  EXPECT_EQ(RefusalOf(NAdam({{"momentum_decay", -1}})),
            "optimizer 'nadam': momentum_decay is -1, but must be in [0, 1e+06]");
  EXPECT_EQ(RefusalOf(NAdam({{"momentum_deca", 1}})),
            "optimizer 'nadam' has no option 'momentum_deca'; did you mean "
            "'momentum_decay'?");
}

}  // namespace
}  // namespace syncline
