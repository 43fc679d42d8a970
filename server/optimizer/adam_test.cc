#include "server/optimizer/adam.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct AdamReference {
  explicit AdamReference(const OptimizerSettings& settings)
      : decay(settings),
        beta1(Option(settings, "beta1")),
        beta2(Option(settings, "beta2")),
        epsilon(Option(settings, "eps")),
        amsgrad(Option(settings, "amsgrad") != 0) {}

  template <typename Real>
  void Step(int t, Real gradient, Element<Real>& e) const {
    const Real g = decay.Apply(gradient, e);
    e.m = Real(beta1) * e.m + Real(1 - beta1) * g;
    e.v = Real(beta2) * e.v + Real(1 - beta2) * g * g;
    e.extra = amsgrad ? std::max(e.extra, e.v) : e.v;
    const double correction1 = 1 - std::pow(beta1, t);
    const double correction2 = std::sqrt(1 - std::pow(beta2, t));
    e.p -= Real(decay.lr / correction1) *
           (e.m / (std::sqrt(e.extra) / Real(correction2) + Real(epsilon)));
  }

  DecayReference decay;
  double beta1;
  double beta2;
  double epsilon;
  bool amsgrad;
};

OptimizerSettings Adam(OptionValues options) {
  return {.name = "adam", .options = std::move(options)};
}
OptimizerSettings AdamW(OptionValues options) {
  return {.name = "adamw", .options = std::move(options)};
}

TEST(Adam, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {AdamW({{"lr", 0.01}, {"weight_decay", 0.1}}),
       {0.946599364f, -0.447604954f, 0.204831451f, 2.97072554f}},
      {AdamW({{"lr", 0.01},
              {"weight_decay", 0},
              {"beta1", 0.8},
              {"beta2", 0.99},
              {"eps", 1e-6}}),
       {0.949866891f, -0.450000197f, 0.207685977f, 2.98659897f}},
      {AdamW({{"lr", 0.01},
              {"weight_decay", 0.1},
              {"beta1", 0.8},
              {"beta2", 0.5},
              {"amsgrad", 1}}),
       {0.951485515f, -0.447604954f, 0.210997462f, 2.97165799f}},
      {Adam({{"lr", 0.01}, {"weight_decay", 0.1}}),
       {0.950410128f, -0.45001778f, 0.205007136f, 2.95001817f}},
      {Adam({{"lr", 0.01},
             {"weight_decay", 0.1},
             {"beta1", 0.8},
             {"beta2", 0.5},
             {"amsgrad", 1}}),
       {0.954499185f, -0.449935257f, 0.210443273f, 2.94993901f}},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(Adam, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  for (const OptimizerSettings& settings :
       {AdamW({{"weight_decay", 0.01}}), AdamW({{"weight_decay", 0.1}}),
        AdamW({{"weight_decay", 0.1}, {"beta2", 0.9}, {"amsgrad", 1}}),
        Adam({{"weight_decay", 0.01}}),
        Adam({{"weight_decay", 0.01}, {"beta2", 0.9}, {"amsgrad", 1}})}) {
    ExpectAsExactAsAPlainLoop<AdamReference>(settings);
  }
}

// Tests are compiled for the baseline instruction set, kernels for that of the CPU.
TEST(Adam, KernelGivesTheBitsOfAScalarLoopOnEveryCpu) {
  constexpr size_t kElements = 1003;
  std::mt19937 random(11);
  const std::vector<float> weights = MixedGradient(random, kElements);
  const std::vector<float> gradient = MixedGradient(random, kElements);
  Training training(AdamW({{"weight_decay", 0.01}}), weights);
  training.scalars.gradient_scale = 0.3f;
  training.Step(gradient);
  std::vector<float> want(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const float g = gradient[i] * 0.3f;
    const float p = weights[i];
    const float m = float(1 - 0.9) * g;
    const float v = (float(1 - 0.999) * g) * g;
    const float denominator =
        std::sqrt(v) * float(1 / std::sqrt(1 - 0.999)) + float(1e-8);
    want[i] = p - (float(1e-3 * 0.01) * p + float(1e-3 / (1 - 0.9)) * (m / denominator));
  }
  ExpectSameBits(training.weights(), want, "adamw");
}

TEST(Adam, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(AdamW({{"weight_decay", 0.1}}));
  ExpectTheSameBitsInAnyCutting(
      Adam({{"weight_decay", 0.1}, {"beta2", 0.5}, {"amsgrad", 1}}));
}

TEST(Adam, IsAdamWWhenDecoupled) {
  std::mt19937 random(3);
  Training adam(Adam({{"weight_decay", 0.01}, {"decoupled", 1}}), {1, 2, 3});
  Training adamw(AdamW({}), {1, 2, 3});
  for (int step = 0; step < 5; ++step) {
    const std::vector<float> gradient = MixedGradient(random, 3);
    adam.Step(gradient);
    adamw.Step(gradient);
  }
  ExpectSameBits(adam.weights(), adamw.weights(), "adam");
}

}  // namespace
}  // namespace syncline
