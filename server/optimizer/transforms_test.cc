#include "server/optimizer/transforms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "server/optimizer/tensor_reference_test_util.h"

namespace syncline {
namespace {

using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

struct Tensor {
  Shape shape;
  std::vector<float> weights = {};
  std::vector<float> gradient = {};
  float gradient_scale = 1;
};

Tensor RandomTensor(const Shape& shape) {
  const size_t n = TensorShape(shape).elements();
  Tensor tensor = {.shape = shape,
                   .weights = NormalValues(n, 1),
                   .gradient = NormalValues(n, 2),
                   .gradient_scale = 0.5f};
  // Rows of very different norms, so that some are clipped and some are not.
  const size_t row = TensorShape(shape).row_elements();
  for (size_t i = 0; i < n; ++i) tensor.gradient[i] *= std::exp2(-double(i / row % 12));
  return tensor;
}

// Returns the gradient after all transforms, applied in strips of `strip` elements.
std::vector<float> Transformed(const OptionValues& values, const Tensor& tensor,
                               size_t strip = kTileElements) {
  const GradientTransforms transforms(values);
  const TensorShape shape(tensor.shape);
  std::vector<float> gradient = tensor.gradient;
  std::vector<double> figures(transforms.Figures(shape));
  const auto part = [&](size_t first, size_t most) {
    const size_t n = std::min(most, gradient.size() - first);
    return GradientStrip{.gradient = std::span(gradient).subspan(first, n),
                         .master = std::span(tensor.weights).subspan(first, n),
                         .first_element = first,
                         .gradient_scale = tensor.gradient_scale};
  };
  for (int round = 0; round < transforms.rounds(); ++round) {
    for (size_t first = 0; first < gradient.size(); first += kTileElements) {
      transforms.Reduce(round, part(first, kTileElements), shape, figures);
    }
    transforms.Finish(round, shape, figures);
  }
  for (size_t first = 0; first < gradient.size(); first += strip) {
    transforms.Apply(part(first, strip), shape, figures);
  }
  return gradient;
}

// Computes the same in float64, one transform after the other.
std::vector<double> Reference(const OptionValues& values, const Tensor& tensor) {
  const auto option = [&](const char* name) {
    return OptionOr(TransformOptions(), values, name);
  };
  std::vector<double> g(tensor.gradient.begin(), tensor.gradient.end());
  for (double& value : g) value *= tensor.gradient_scale;
  if (const double most = option("clip_tensor_norm"); most > 0) {
    const double factor = std::min(1.0, most / (NormOf(g) + 1e-6));
    for (double& value : g) value *= factor;
  }
  if (const double most = option("clip_value"); most > 0) {
    for (double& value : g) value = std::clamp(value, -most, most);
  }
  const size_t length = TensorShape(tensor.shape).row_elements();
  for (size_t first = 0; first < g.size(); first += length) {
    const auto row = std::span(g).subspan(first, length);
    if (const double share = option("agc"); share > 0) {
      const std::vector<double> weights(tensor.weights.begin() + first,
                                        tensor.weights.begin() + first + length);
      const double norm = NormOf(row);
      const double most = share * std::max(NormOf(weights), 1e-3);
      for (double& value : row) value *= norm > most ? most / std::max(norm, 1e-6) : 1;
    }
    if (option("centralize") != 0 && tensor.shape.size() > 1 && length > 1) {
      double mean = 0;
      for (const double value : row) mean += value / static_cast<double>(length);
      for (double& value : row) value -= mean;
    }
  }
  return g;
}

const OptionValues kCases[] = {
    {{"clip_tensor_norm", 3}},
    {{"clip_value", 0.1}},
    {{"agc", 0.02}},
    {{"centralize", 1}},
    {{"agc", 0.02}, {"centralize", 1}},
    {{"clip_tensor_norm", 20}, {"clip_value", 0.5}, {"agc", 0.02}, {"centralize", 1}}};

TEST(GradientTransforms, EqualTheNaiveLoopForEveryShape) {
  for (const Shape& shape :
       {Shape{1}, Shape{1000}, Shape{65537}, Shape{1, 1}, Shape{17, 1}, Shape{1, 17},
        Shape{64, 3, 3, 3}, Shape{31, 15}, Shape{33, 16}, Shape{300, 700},
        Shape{3, 70000}}) {
    const Tensor tensor = RandomTensor(shape);
    for (const OptionValues& values : kCases) {
      EXPECT_LT(RelativeError(Transformed(values, tensor), Reference(values, tensor)),
                1e-6)
          << testing::PrintToString(shape) << testing::PrintToString(values);
    }
  }
}

TEST(GradientTransforms, HaveTheSameBitsInAnyStrips) {
  for (const Shape& shape : {Shape{300, 700}, Shape{3, 70000}, Shape{70000}}) {
    const Tensor tensor = RandomTensor(shape);
    for (const OptionValues& values : kCases) {
      const std::vector<float> want = Transformed(values, tensor);
      EXPECT_EQ(Transformed(values, tensor, 4096), want);
      EXPECT_EQ(Transformed(values, tensor, 999), want);
    }
  }
}

// The gradients are those of timm.utils.agc.adaptive_clip_grad (timm 1.0.15) with
// clip_factor 0.3, in float64.
TEST(GradientTransforms, ClipAdaptivelyAsTimm) {
  const Tensor matrix = {
      .shape = {3, 4}, .weights = GoldenWeights(12), .gradient = GoldenGradient(12, 1)};
  EXPECT_THAT(Transformed({{"agc", 0.3}}, matrix),
              Pointwise(FloatNear(1e-6f),
                        std::vector<float>{0.142832487f, 0.285664974f, -0.380886633f,
                                           -0.238054145f, -0.135356672f, 0.0676783358f,
                                           0.270713343f, 0.473748351f, -0.465362762f,
                                           -0.265921578f, -0.0664803945f, 0.132960789f}));
  const Tensor vector = {
      .shape = {5}, .weights = GoldenWeights(5), .gradient = GoldenGradient(5, 1)};
  EXPECT_THAT(Transformed({{"agc", 0.3}}, vector),
              Pointwise(FloatNear(1e-6f),
                        std::vector<float>{0.181703892f, 0.363407784f, -0.484543712f,
                                           -0.30283982f, -0.121135928f}));
}

TEST(GradientTransforms, ClipAdaptivelyWhereWeightsAndGradientsAreTiny) {
  const Tensor start = {.shape = {2}, .weights = {0, 0}, .gradient = {0.01f, 0}};
  EXPECT_THAT(Transformed({{"agc", 0.1}}, start),
              Pointwise(FloatNear(1e-10f), std::vector<float>{1e-4f, 0}));
  const Tensor tiny = {.shape = {2}, .weights = {0, 0}, .gradient = {5e-7f, 0}};
  EXPECT_THAT(Transformed({{"agc", 1e-4}}, tiny),
              Pointwise(FloatNear(1e-13f), std::vector<float>{5e-8f, 0}));
}

TEST(GradientTransforms, LeaveRowsOfZerosAndRowsOfOneElement) {
  const Tensor zeros = {
      .shape = {2, 3}, .weights = {0, 0, 0, 1, 1, 1}, .gradient = {0, 0, 0, 0, 0, 0}};
  EXPECT_EQ(Transformed({{"agc", 0.1}, {"centralize", 1}}, zeros), zeros.gradient);
  const Tensor column = {.shape = {3, 1}, .weights = {1, 1, 1}, .gradient = {1, 2, 3}};
  EXPECT_EQ(Transformed({{"centralize", 1}}, column), column.gradient);
}

TEST(GradientTransforms, ScaleOnlyWhenNothingElseIsAsked) {
  const GradientTransforms none({});
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.rounds(), 0);
  EXPECT_EQ(none.Figures(TensorShape(Shape{3, 4})), 0u);
  const GradientTransforms clip({{"clip_value", 1}});
  EXPECT_FALSE(clip.empty());
  EXPECT_FALSE(clip.NeedsTensor());
  EXPECT_TRUE(GradientTransforms({{"agc", 0.1}}).NeedsTensor());
  EXPECT_EQ(GradientTransforms({{"agc", 0.1}, {"clip_tensor_norm", 1}}).rounds(), 2);
}

TEST(GradientTransforms, KeepValuesThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor tensor = {.shape = {3}, .weights = {1, 1, 1}, .gradient = {nan, inf, 4}};
  const std::vector<float> got = Transformed({{"clip_value", 2}}, tensor);
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_EQ(got[1], 2);
  EXPECT_EQ(got[2], 2);
  EXPECT_TRUE(std::isnan(Transformed({{"clip_tensor_norm", 2}}, tensor)[0]));
}

TEST(GradientTransforms, RefuseWhatTheirTableDoesNotAllow) {
  for (const OptionValues& values :
       {OptionValues{{"agc", -1}}, OptionValues{{"centralize", 0.5}},
        OptionValues{{"clip_value", std::numeric_limits<double>::quiet_NaN()}}}) {
    EXPECT_FALSE(ValidateOptions("gradient transforms", TransformOptions(), values).ok());
  }
  const auto status =
      ValidateOptions("gradient transforms", TransformOptions(), {{"centralise", 1}});
  EXPECT_THAT(std::string(status.message()), HasSubstr("centralize"));
}

TEST(CompensateDelay, EqualsTheFormula) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{1025}}) {
    const std::vector<float> master = NormalValues(n, 1);
    const std::vector<float> backup = NormalValues(n, 2);
    const std::vector<float> start = NormalValues(n, 3);
    std::vector<float> gradient = start;
    CompensateDelay(0.04f, {.gradient = gradient, .master = master, .backup = backup});
    for (size_t i = 0; i < n; ++i) {
      const double g = start[i];
      EXPECT_NEAR(gradient[i], g + 0.04 * g * g * (double{master[i]} - backup[i]), 1e-6);
    }
  }
}

TEST(CompensateDelay, ChangesNothingWithoutDelay) {
  const std::vector<float> weights = NormalValues(100, 1);
  std::vector<float> gradient = NormalValues(100, 2);
  CompensateDelay(0.04f, {.gradient = gradient, .master = weights, .backup = weights});
  EXPECT_EQ(gradient, NormalValues(100, 2));
}

// For f = -log w the square of the slope is the curvature, as the method assumes.
TEST(CompensateDelay, BringsTheGradientNearerToThatOfTheNewWeights) {
  const auto slope = [](double w) { return -1 / w; };  // f = -log w, f'' = f' * f'
  const std::vector<float> backup = {2};
  const std::vector<float> master = {2.2f};
  std::vector<float> gradient = {static_cast<float>(slope(2))};
  CompensateDelay(1, {.gradient = gradient, .master = master, .backup = backup});
  EXPECT_LT(std::abs(gradient[0] - slope(2.2)), 0.2 * std::abs(slope(2) - slope(2.2)));
}

}  // namespace
}  // namespace syncline
