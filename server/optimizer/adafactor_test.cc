#include "server/optimizer/adafactor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "server/optimizer/tensor_reference_test_util.h"

namespace syncline {
namespace {

using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

// The formulas of adafactor.h in float64, element by element.
struct AdafactorReference {
  double beta1 = 0;
  double weight_decay = 0.1;

  void Step(double t, const std::vector<double>& gradient) {
    const size_t n = weights.size();
    const auto elements = static_cast<double>(n);
    const double alpha = std::min(1e-2, 1 / std::sqrt(t)) *
                         std::max(1e-3, NormOf(weights) / std::sqrt(elements));
    std::vector<double> u = shape.size() > 1 ? Factored(1 - std::pow(t, -0.8), gradient)
                                             : Plain(1 - std::pow(t, -0.8), gradient);
    const double clip = std::max(1.0, NormOf(u) / std::sqrt(elements));
    mean.resize(n);
    for (size_t i = 0; i < n; ++i) {
      mean[i] = beta1 * mean[i] + (1 - beta1) * alpha * u[i] / clip;
      weights[i] -= alpha * weight_decay * weights[i] + mean[i];
    }
  }

  std::vector<double> Plain(double b, const std::vector<double>& gradient) {
    variance.resize(gradient.size());
    std::vector<double> u = gradient;
    for (size_t i = 0; i < u.size(); ++i) {
      variance[i] = b * variance[i] + (1 - b) * (u[i] * u[i] + 1e-30);
      u[i] /= std::sqrt(variance[i]);
    }
    return u;
  }

  std::vector<double> Factored(double b, const std::vector<double>& gradient) {
    const size_t c = shape.back();
    const size_t r = shape[shape.size() - 2];
    rows.resize(gradient.size() / c);
    columns.resize(gradient.size() / r);
    for (double& row : rows) row *= b;
    for (double& column : columns) column *= b;
    std::vector<double> u = gradient;
    for (size_t i = 0; i < u.size(); ++i) {
      const double s = u[i] * u[i] + 1e-30;
      rows[i / c] += (1 - b) * s / static_cast<double>(c);
      columns[i / (r * c) * c + i % c] += (1 - b) * s / static_cast<double>(r);
    }
    std::vector<double> means(gradient.size() / (r * c));
    for (size_t i = 0; i < rows.size(); ++i) {
      means[i / r] += rows[i] / static_cast<double>(r);
    }
    for (size_t i = 0; i < u.size(); ++i) {
      const size_t matrix = i / (r * c);
      u[i] /= std::sqrt(rows[i / c] / means[matrix] * columns[matrix * c + i % c]);
    }
    return u;
  }

  std::vector<double> weights = {};
  Shape shape = {};
  std::vector<double> mean = {};
  std::vector<double> variance = {};
  std::vector<double> rows = {};
  std::vector<double> columns = {};
};

const OptimizerSettings kAdafactor = {.name = "adafactor",
                                      .options = {{"weight_decay", 0.1}}};

TEST(Adafactor, IsExactOverAThousandSteps) {
  for (const Shape& shape : {Shape{31, 47}, Shape{5, 20, 17}, Shape{4, 5, 3, 3},
                             Shape{1025}, Shape{40, 1}, Shape{1, 40}}) {
    EXPECT_LT(ErrorAfter(1000, kAdafactor, shape, AdafactorReference{}), 1e-6)
        << testing::PrintToString(shape);
  }
}

TEST(Adafactor, IsExactWithAMeanStep) {
  OptimizerSettings settings = kAdafactor;
  settings.options["beta1"] = 0.9;
  for (const Shape& shape : {Shape{31, 47}, Shape{1025}}) {
    EXPECT_LT(ErrorAfter(1000, settings, shape, AdafactorReference{.beta1 = 0.9}), 1e-6)
        << testing::PrintToString(shape);
  }
}

TEST(Adafactor, IsExactOnOneElementAndOnSeveralTiles) {
  for (const Shape& shape : {Shape{1}, Shape{300, 700}, Shape{3, 70000}, Shape{65537}}) {
    EXPECT_LT(ErrorAfter(10, kAdafactor, shape, AdafactorReference{}), 1e-6)
        << testing::PrintToString(shape);
  }
}

TEST(Adafactor, HasTheSameBitsInAnyStrips) {
  for (const Shape& shape : {Shape{300, 700}, Shape{3, 70000}, Shape{70000}}) {
    ExpectSameBitsInAnyStrips(kAdafactor, shape);
  }
}

struct GoldenCase {
  Shape shape;
  OptionValues options;
  std::vector<float> want;
};

void ExpectGolden(const std::vector<GoldenCase>& cases) {
  for (const GoldenCase& c : cases) {
    EXPECT_THAT(GoldenRun({.name = "adafactor", .options = c.options}, c.shape, 6),
                Pointwise(FloatNear(5e-7f), c.want))
        << testing::PrintToString(c.shape) << testing::PrintToString(c.options);
  }
}

// The weights are those of transformers.Adafactor (transformers 4.49.0) in float64.
// torch.optim.Adafactor(lr=0.01, weight_decay=0) of torch 2.13 gives the same.
TEST(Adafactor, GivesTheWeightsOfTransformersAndTorch) {
  ExpectGolden(
      {{{3, 4},
        {},
        {-1.52260342f, -0.743483972f, 0.000708938193f, 0.747614976f, 1.50246479f,
         -1.00027342f, -0.254480173f, 0.491805904f, 1.27863087f, -1.25617267f,
         -0.480181077f, 0.23529182f}},
       {{2, 3, 2},
        {},
        {-1.51933041f, -0.745949713f, 0.00309619307f, 0.749800368f, 1.50837786f,
         -1.0067472f, -0.250907459f, 0.49518159f, 1.27345728f, -1.25945693f,
         -0.473402274f, 0.229248228f}},
       {{5},
        {},
        {-1.52436269f, -0.740936999f, 0.00198530212f, 0.753761558f, 1.5059197f}}});
}

TEST(Adafactor, GivesTheWeightsOfTransformersWithoutRelativeSteps) {
  const OptionValues options = {{"lr", 0.05},
                                {"beta1", 0.9},
                                {"weight_decay", 0.1},
                                {"scale_parameter", 0},
                                {"relative_step", 0}};
  ExpectGolden(
      {{{3, 4},
        options,
        {-1.48641754f, -0.738644886f, 0.00622548559f, 0.725824848f, 1.48274096f,
         -0.966651898f, -0.23913971f, 0.449810604f, 1.26481451f, -1.2167004f,
         -0.449223444f, 0.224010522f}},
       {{2, 3, 2},
        options,
        {-1.48136847f, -0.743583778f, 0.00892592561f, 0.729786364f, 1.49633372f,
         -0.980091435f, -0.231964186f, 0.458086151f, 1.2526225f, -1.22413474f,
         -0.434080724f, 0.208012859f}},
       {{5},
        options,
        {-1.48661704f, -0.734427983f, 0.00568598189f, 0.737184425f, 1.48845229f}}});
}

TEST(Adafactor, GivesTheWeightsOfTransformersWhenWarmingUp) {
  const OptionValues options = {
      {"warmup_init", 1}, {"clip_threshold", 0.5}, {"decay_rate", 0.6}, {"eps2", 2}};
  ExpectGolden(
      {{{3, 4},
        options,
        {-1.50000976f, -0.749991788f, -1.88504831e-06f, 0.749998125f, 1.49999462f,
         -1.0000009f, -0.250003993f, 0.500002757f, 1.25000916f, -1.25000377f,
         -0.499993844f, 0.249993076f}},
       {{2, 3, 2},
        options,
        {-1.50000792f, -0.74999283f, -2.59204868e-07f, 0.749999093f, 1.4999957f,
         -1.00000273f, -0.250002788f, 0.500003046f, 1.25000871f, -1.25000493f,
         -0.499992305f, 0.249992838f}},
       {{5},
        options,
        {-1.5000079f, -0.74999098f, -2.90195859e-08f, 0.749999358f, 1.49999439f}}});
}

TEST(Adafactor, KeepsRowAndColumnMeansOnly) {
  const auto optimizer = *MakeOptimizer(kAdafactor);
  EXPECT_TRUE(optimizer->slots().empty());
  EXPECT_EQ(optimizer->tensor_reduction()->Factors(TensorShape(Shape{6, 300, 700})),
            6000u);
  EXPECT_EQ(optimizer->tensor_reduction()->Factors(TensorShape(Shape{700})), 700u);
}

TEST(Adafactor, StaysFiniteWhereRowsAndColumnsAreZero) {
  Training training({.name = "adafactor"}, std::vector<float>(12, 1.0f), {3, 4});
  std::vector<float> gradient(12, 0.0f);
  training.Step(gradient);
  EXPECT_EQ(training.weights(), std::vector<float>(12, 1.0f));
  gradient[5] = 1e6f;
  training.Step(gradient);
  training.Step(gradient);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(i == 5 ? training.weights()[i] < 1 : training.weights()[i] == 1.0f) << i;
  }
}

TEST(Adafactor, RefusesARateOrWarmUpThatDoNotFitItsSteps) {
  const OptimizerSettings cases[] = {
      {.name = "adafactor", .options = {{"relative_step", 0}}},
      {.name = "adafactor",
       .options = {{"relative_step", 0}, {"lr", 0.1}, {"warmup_init", 1}}}};
  for (const auto& settings : cases) {
    const auto status = ValidateOptimizer(settings);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("relative_step"));
  }
}

}  // namespace
}  // namespace syncline
