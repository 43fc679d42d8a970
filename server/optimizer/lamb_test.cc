#include "server/optimizer/lamb.h"

#include <cmath>
#include <vector>

#include "server/optimizer/tensor_reference_test_util.h"

namespace syncline {
namespace {

using testing::FloatNear;
using testing::Pointwise;

// The formulas of lamb.h in float64, for lr 0.01, weight decay 0.1 and default betas.
struct LambReference {
  void Step(double t, const std::vector<double>& gradient) {
    mean.resize(weights.size());
    variance.resize(weights.size());
    std::vector<double> direction(weights.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      const double g = gradient[i];
      mean[i] = 0.9 * mean[i] + 0.1 * g;
      variance[i] = 0.999 * variance[i] + 0.001 * g * g;
      const double root = std::sqrt(variance[i] / (1 - std::pow(0.999, t)));
      direction[i] = mean[i] / (1 - std::pow(0.9, t)) / (root + 1e-6) + 0.1 * weights[i];
    }
    const double ratio = NormOf(weights) / NormOf(direction);
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] -= 0.01 * ratio * direction[i];
    }
  }

  std::vector<double> weights = {};
  Shape shape = {};
  std::vector<double> mean = {};
  std::vector<double> variance = {};
};

const OptimizerSettings kLamb = {.name = "lamb",
                                 .options = {{"lr", 0.01}, {"weight_decay", 0.1}}};

TEST(Lamb, IsExactOverAThousandSteps) {
  for (const Shape& shape : {Shape{31, 47}, Shape{3, 20, 17}, Shape{1025}, Shape{1}}) {
    EXPECT_LT(ErrorAfter(1000, kLamb, shape, LambReference{}), 1e-6)
        << testing::PrintToString(shape);
  }
}

TEST(Lamb, IsExactOnTensorsOfSeveralTiles) {
  for (const Shape& shape : {Shape{300, 700}, Shape{3, 70000}, Shape{65537}}) {
    EXPECT_LT(ErrorAfter(10, kLamb, shape, LambReference{}), 1e-6)
        << testing::PrintToString(shape);
  }
}

TEST(Lamb, HasTheSameBitsInAnyStrips) { ExpectSameBitsInAnyStrips(kLamb, {300, 700}); }

// The weights are those of timm.optim.Lamb (timm 1.0.15) without clipping, in float64.
TEST(Lamb, GivesTheWeightsOfTimm) {
  struct Case {
    OptionValues options;
    std::vector<float> want;
  };
  const Case cases[] = {{{{"weight_decay", 0.1}},
                         {-1.65636038f, -0.855714523f, 0.105215881f, 0.756725469f,
                          1.66719548f, -0.941890306f, -0.151514498f, 0.214035503f,
                          1.43634297f, -1.23269886f, -0.15766942f, 0.104271424f}},
                        {{{"weight_decay", 0}},
                         {-1.61369889f, -0.848049922f, 0.0793969783f, 0.799741229f,
                          1.63994146f, -1.02574735f, -0.266518991f, 0.368021445f,
                          1.37286412f, -1.23916214f, -0.350473136f, 0.179917536f}},
                        {{{"weight_decay", 0}, {"always_adapt", 1}},
                         {-1.73687028f, -0.903287468f, 0.102976446f, 0.800295428f,
                          1.75108463f, -0.9973605f, -0.174654762f, 0.247141274f,
                          1.50490715f, -1.30917993f, -0.189349365f, 0.129789011f}}};
  for (Case c : cases) {
    c.options["lr"] = 0.05;
    EXPECT_THAT(GoldenRun({.name = "lamb", .options = c.options}, {3, 4}, 5),
                Pointwise(FloatNear(1e-6f), c.want))
        << testing::PrintToString(c.options);
  }
}

TEST(Lamb, TakesPlainStepsWhereWeightsOrDirectionAreZero) {
  Training zero_weights(kLamb, {0, 0});
  zero_weights.Step(std::vector<float>{1, -1});
  EXPECT_THAT(zero_weights.weights(),
              Pointwise(FloatNear(1e-6f), std::vector<float>{-0.01f, 0.01f}));
  Training nothing(
      {.name = "lamb", .options = {{"weight_decay", 0}, {"always_adapt", 1}}}, {1, 2});
  nothing.Step(std::vector<float>{0, 0});
  EXPECT_EQ(nothing.weights(), (std::vector<float>{1, 2}));
}

TEST(Lamb, NeedsNoFiguresWithoutAdaption) {
  const auto plain = MakeOptimizer({.name = "lamb", .options = {{"weight_decay", 0}}});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ((*plain)->tensor_reduction(), nullptr);
  EXPECT_NE((*MakeOptimizer({.name = "lamb"}))->tensor_reduction(), nullptr);
}

}  // namespace
}  // namespace syncline
