#include "server/optimizer/sgd.h"

#include "server/optimizer/element_reference_test_util.h"

namespace syncline {
namespace {

struct SgdReference {
  explicit SgdReference(const OptimizerSettings& settings)
      : decay(settings),
        momentum(Option(settings, "momentum")),
        dampening(Option(settings, "dampening")),
        nesterov(Option(settings, "nesterov") != 0) {}

  template <typename Real>
  void Step(int t, Real gradient, Element<Real>& e) const {
    Real g = decay.Apply(gradient, e);
    if (momentum != 0) {
      e.m = t == 1 ? g : Real(momentum) * e.m + Real(1 - dampening) * g;
      g = nesterov ? g + Real(momentum) * e.m : e.m;
    }
    e.p -= Real(decay.lr) * g;
  }

  DecayReference decay;
  double momentum;
  double dampening;
  bool nesterov;
};

OptimizerSettings Sgd(OptionValues options) {
  return {.name = "sgd", .options = std::move(options)};
}

TEST(Sgd, GivesTheWeightsOfTorch) {
  const GoldenCase cases[] = {
      {Sgd({{"lr", 0.1}, {"weight_decay", 0.01}}),
       {0.845209837f, -0.39770478f, 0.180444762f, 2.98493052f}},
      {Sgd({{"lr", 0.1}, {"weight_decay", 0.01}, {"momentum", 0.9}}),
       {0.670361936f, -0.23118107f, 0.0256293043f, 2.96041489f}},
      {Sgd({{"lr", 0.1}, {"momentum", 0.9}, {"dampening", 0.5}}),
       {0.82100898f, -0.327607989f, 0.0776794851f, 2.99967194f}},
      {Sgd({{"lr", 0.1}, {"weight_decay", 0.01}, {"momentum", 0.9}, {"nesterov", 1}}),
       {0.549112856f, -0.156393677f, -0.0208401494f, 2.94939613f}},
  };
  for (const GoldenCase& golden : cases) ExpectGolden(golden);
}

TEST(Sgd, After1000StepsIsAsNearToFloat64AsAPlainLoop) {
  const OptionValues cases[] = {
      {{"weight_decay", 0.01}},
      {{"weight_decay", 0.01}, {"decoupled", 1}},
      {{"weight_decay", 0.01}, {"momentum", 0.9}, {"dampening", 0.2}},
      {{"weight_decay", 0.01}, {"momentum", 0.9}, {"nesterov", 1}},
      {{"weight_decay", 0.01}, {"momentum", 0.9}, {"nesterov", 1}, {"decoupled", 1}},
  };
  for (OptionValues options : cases) {
    options["lr"] = 0.01;
    ExpectAsExactAsAPlainLoop<SgdReference>(Sgd(options));
  }
}

// Tests are compiled for the baseline instruction set, kernels for that of the CPU.
TEST(Sgd, KernelGivesTheBitsOfAScalarLoopOnEveryCpu) {
  constexpr size_t kElements = 1003;
  std::mt19937 random(11);
  const std::vector<float> weights = MixedGradient(random, kElements);
  const std::vector<float> gradient = MixedGradient(random, kElements);
  Training training(Sgd({{"lr", 1e-2}, {"weight_decay", 0.01}, {"momentum", 0.9}}),
                    weights);
  training.scalars.gradient_scale = 0.3f;
  training.Step(gradient);
  std::vector<float> want(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const float g = gradient[i] * 0.3f;
    want[i] = weights[i] - 1e-2f * (g + 0.01f * weights[i]);
  }
  ExpectSameBits(training.weights(), want, "sgd");
}

TEST(Sgd, HasTheSameBitsInAnyCutting) {
  ExpectTheSameBitsInAnyCutting(Sgd({{"weight_decay", 0.01}, {"decoupled", 1}}));
  ExpectTheSameBitsInAnyCutting(Sgd({{"weight_decay", 0.01}, {"momentum", 0.9}}));
  ExpectTheSameBitsInAnyCutting(Sgd({{"momentum", 0.9}, {"nesterov", 1}}));
}

TEST(Sgd, ReplacesWeightsByTheStep) {
  Training training(Sgd({{"lr", 1}, {"replace", 1}}), {1e30f, NAN, INFINITY, 0});
  training.Step(std::vector<float>{0.1f, 2, -3, INFINITY});
  EXPECT_THAT(training.weights(), testing::ElementsAre(-0.1f, -2.0f, 3.0f, -INFINITY));
  training.Step(std::vector<float>{1e-30f, 0, 0, 4});
  EXPECT_THAT(training.weights(), testing::ElementsAre(-1e-30f, 0.0f, 0.0f, -4.0f));
  EXPECT_THAT(RefusalOf(Sgd({{"replace", 1}, {"momentum", 0.9}})),
              testing::HasSubstr("nothing of the weights stays"));
}

TEST(Sgd, NesterovNeedsMomentumWithoutDampening) {
  EXPECT_THAT(RefusalOf(Sgd({{"nesterov", 1}})), testing::HasSubstr("momentum is 0"));
  EXPECT_THAT(RefusalOf(Sgd({{"momentum", 0.9}, {"dampening", 0.1}, {"nesterov", 1}})),
              testing::HasSubstr("dampening 0.1"));
  EXPECT_TRUE(ValidateOptimizer(Sgd({{"momentum", 0.9}, {"nesterov", 1}})).ok());
}

}  // namespace
}  // namespace syncline
